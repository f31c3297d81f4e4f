"""Lines on their way to engines elsewhere."""

from __future__ import annotations

import asyncio

import pytest

from jaxserve.errors import DrainingError, EngineDeadError, JaxserveError, QueueFullError
from jaxserve.jobs.answers import Answer, NoAnswer
from jaxserve.jobs.chunks import LINGER_SECONDS, MOST_DEATHS, Chunks, answer_chunk
from jaxserve.jobs.lines import Line
from tests.unit.jobs.support import Echo

PATIENCE = 30.0


def line(number: int) -> Line:
    return Line(number, f"r{number}", "/v1/completions", {"prompt": f"text {number}"})


class Way:
    """Chunks that go nowhere until somebody answers them."""

    def __init__(self, *, size: int, on_the_way: int) -> None:
        self.sent: list[bytes] = []
        self.arrived = asyncio.Event()
        self.chunks = Chunks(self._send, size=size, on_the_way=on_the_way)
        self.echo = Echo()
        self.alive = True

    def ask(self, *numbers: int) -> list[asyncio.Task[Answer | NoAnswer]]:
        return [asyncio.create_task(self.chunks.answer(line(number))) for number in numbers]

    async def until_sent(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.sent) < count:
                self.arrived.clear()
                await self.arrived.wait()

    async def bring_back(self, at: int) -> bytes:
        data, alive = await answer_chunk(self.echo, self.sent[at], f"engine {at}")
        assert alive == self.alive
        self.chunks.settle(data)
        return data

    def _send(self, data: bytes) -> None:
        self.sent.append(data)
        self.arrived.set()


def texts(tasks: list[asyncio.Task[Answer | NoAnswer]]) -> list[str]:
    answers = [task.result() for task in tasks]
    return [answer.body["choices"][0]["text"] for answer in answers if isinstance(answer, Answer)]


async def test_lines_travel_together_and_each_gets_its_own_answer() -> None:
    way = Way(size=4, on_the_way=2)
    tasks = way.ask(*range(8))
    await way.until_sent(2)
    for at in (1, 0):
        await way.bring_back(at)
    await asyncio.wait(tasks, timeout=PATIENCE)
    assert texts(tasks) == [f"text {number}" for number in range(8)]
    assert len(way.sent) == 2


async def test_no_more_chunks_are_on_the_way_than_may_be() -> None:
    way = Way(size=2, on_the_way=2)
    tasks = way.ask(*range(7))
    await way.until_sent(2)
    await asyncio.sleep(2 * LINGER_SECONDS)
    assert len(way.sent) == 2
    for at in range(4):  # the last one has room left
        await way.until_sent(at + 1)
        await way.bring_back(at)
    await asyncio.wait(tasks, timeout=PATIENCE)
    assert texts(tasks) == [f"text {number}" for number in range(7)]


async def test_a_chunk_with_room_waits_a_little_for_more() -> None:
    way = Way(size=4, on_the_way=2)
    tasks = way.ask(0)
    await asyncio.sleep(0)
    assert not way.sent
    tasks += way.ask(1)
    await way.until_sent(1)
    await way.bring_back(0)
    await asyncio.wait(tasks, timeout=PATIENCE)
    assert texts(tasks) == ["text 0", "text 1"]


async def test_lines_that_are_given_up_are_not_sent() -> None:
    way = Way(size=2, on_the_way=1)
    tasks = way.ask(*range(6))
    await way.until_sent(1)
    for task in (*tasks[:1], *tasks[2:4]):  # one is under way, two wait
        task.cancel()
    await asyncio.wait((tasks[0], *tasks[2:4]), timeout=PATIENCE)
    await way.bring_back(0)
    await way.until_sent(2)
    await way.bring_back(1)
    await asyncio.wait((tasks[1], *tasks[4:]), timeout=PATIENCE)
    assert texts([tasks[1], *tasks[4:]]) == ["text 1", "text 4", "text 5"]
    assert way.echo.asked == ["r0", "r1", "r4", "r5"]


async def test_errors_come_back_as_they_were() -> None:
    def refuse(asked: Line) -> Answer | NoAnswer | None:
        if asked.number == 0:
            raise QueueFullError("too many", retry_after=2.5)
        return NoAnswer("expired", "too late") if asked.number == 1 else None

    way = Way(size=3, on_the_way=1)
    way.echo.refuse = refuse
    tasks = way.ask(0, 1, 2)
    await way.until_sent(1)
    await way.bring_back(0)
    await asyncio.wait(tasks, timeout=PATIENCE)
    with pytest.raises(QueueFullError, match="too many") as refused:
        await tasks[0]
    assert refused.value.retry_after == 2.5
    assert await tasks[1] == NoAnswer("expired", "too late")
    assert texts(tasks[2:]) == ["text 2"]


async def test_a_chunk_that_comes_twice_counts_once() -> None:
    way = Way(size=1, on_the_way=1)
    (first,) = way.ask(0)
    await way.until_sent(1)
    data = await way.bring_back(0)
    (second,) = way.ask(1)
    await way.until_sent(2)
    way.chunks.settle(data)
    (third,) = way.ask(2)
    await asyncio.sleep(2 * LINGER_SECONDS)
    assert len(way.sent) == 2  # the second is under way still
    for at in (1, 2):
        await way.until_sent(at + 1)
        await way.bring_back(at)
    await asyncio.wait((first, second, third), timeout=PATIENCE)
    assert texts([first, second, third]) == ["text 0", "text 1", "text 2"]


async def test_every_line_ends_when_the_way_is_cut() -> None:
    way = Way(size=1, on_the_way=1)
    tasks = way.ask(0, 1)
    await way.until_sent(1)
    way.chunks.fail(EngineDeadError("gone"))
    tasks += way.ask(2)
    for task in tasks:
        with pytest.raises(EngineDeadError, match="gone"):
            await task


@pytest.mark.parametrize("error", [EngineDeadError("gone"), DrainingError("going")])
async def test_lines_of_an_engine_that_died_are_answered_by_another(error: JaxserveError) -> None:
    def refuse(asked: Line) -> Answer | NoAnswer | None:
        if asked.number == 1 and not way.alive:
            raise error
        return None

    way = Way(size=2, on_the_way=1)
    way.echo.refuse = refuse
    tasks = way.ask(0, 1, 2, 3)
    await way.until_sent(1)
    way.alive = False
    await way.bring_back(0)
    way.alive = True
    for at in (1, 2, 3):
        await way.until_sent(at + 1)
        await way.bring_back(at)
    await asyncio.wait(tasks, timeout=PATIENCE)
    assert texts(tasks) == [f"text {number}" for number in range(4)]
    assert way.echo.asked == ["r0", "r1", "r0", "r1", "r2", "r3"]


async def test_a_line_that_kills_every_engine_is_found() -> None:
    def refuse(asked: Line) -> Answer | NoAnswer | None:
        if asked.number == 5:
            raise EngineDeadError("gone")
        return None

    way = Way(size=8, on_the_way=1)
    way.echo.refuse = refuse
    tasks = way.ask(*range(8))
    at = 0
    while not all(task.done() for task in tasks):
        await way.until_sent(at + 1)
        way.chunks.settle((await answer_chunk(way.echo, way.sent[at], f"engine {at}"))[0])
        await asyncio.sleep(LINGER_SECONDS)
        at += 1
    outcomes = [task.result() for task in tasks]
    assert isinstance(outcomes[5], NoAnswer)
    assert outcomes[5].code == "engine_killed_by_request"
    assert all(isinstance(outcome, Answer) for outcome in (*outcomes[:5], *outcomes[6:]))


async def test_engines_that_always_die_end_the_job() -> None:
    def refuse(asked: Line) -> Answer | NoAnswer | None:
        raise EngineDeadError("gone")

    way = Way(size=2, on_the_way=1)
    way.echo.refuse, way.alive = refuse, False
    tasks = way.ask(*range(20))
    for at in range(MOST_DEATHS + 3):
        await way.until_sent(at + 1)
        await way.bring_back(at)
    await asyncio.wait(tasks, timeout=PATIENCE)
    errors = [str(task.exception()) for task in tasks[2:]]
    assert errors == ["6 engines died, one after another: gone"] * 18


async def test_an_engine_that_loses_many_chunks_died_once() -> None:
    def refuse(asked: Line) -> Answer | NoAnswer | None:
        raise EngineDeadError("gone")

    way = Way(size=1, on_the_way=8)
    tasks = way.ask(*range(8))
    await way.until_sent(8)
    for at in range(8):
        way.chunks.settle((await answer_chunk(Echo(refuse), way.sent[at], "the engine"))[0])
    await way.until_sent(16)
    for at in range(8, 16):
        await way.bring_back(at)
    await asyncio.wait(tasks, timeout=PATIENCE)
    assert texts(tasks) == [f"text {number}" for number in range(8)]
