"""Turns: how much is in the engine, and whose line is next."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack

import pytest

from server.batches.turns import Load, Turns

ONE = Load(1, 10)


class Lines:
    """Lines that want turns, and those that have them."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.running: list[str] = []  # in the order of their turns

    async def want(self, tenant: str, batch: str, load: Load = ONE) -> str:
        name = f"{tenant}/{batch}/{len(self.tasks)}"
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._run(name, tenant, batch, load))
        await asyncio.sleep(0)
        return name

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.wait([self.tasks[name]])
        await asyncio.sleep(0)

    async def _run(self, name: str, tenant: str, batch: str, load: Load) -> None:
        async with self.turns.turn(tenant, batch, load):
            self.running.append(name)
            try:
                await self.ends[name].wait()
            finally:
                self.running.remove(name)


def lines_of(bound: Load, weights: Mapping[str, float] | None = None) -> Lines:
    return Lines(Turns(lambda own: bound, lambda tenant: (weights or {}).get(tenant, 1.0)))


async def shares(lines: Lines, count: int) -> Counter[str]:
    """Turns by batch of the next so many, where the one that has run longest ends each time."""
    seen: Counter[str] = Counter()
    for _ in range(count):
        await lines.end(lines.running[0])
        seen[lines.running[-1].rpartition("/")[0]] += 1
    return seen


async def test_no_more_than_the_bound_is_in_the_engine() -> None:
    lines = lines_of(Load(3, 100))
    names = [await lines.want("a", "x") for _ in range(5)]
    assert lines.running == names[:3]
    await lines.end(names[1])
    assert lines.running == [names[0], names[2], names[3]]
    for name in (names[0], names[2], names[3]):
        await lines.end(name)
    assert lines.running == [names[4]]
    long = await lines.want("a", "x", Load(1, 91))
    assert lines.running == [names[4]], "tokens are bounded too"
    await lines.want("a", "x")
    assert lines.running == [names[4]], "what comes later does not pass it"
    await lines.end(names[4])
    assert lines.running == [long], "100 tokens would be 101"


async def test_the_bound_may_change() -> None:
    bound = Load(1, 100)
    told: list[int] = []

    def bound_now(own: int) -> Load:
        told.append(own)
        return bound

    lines = Lines(Turns(bound_now, lambda tenant: 1.0))
    names = [await lines.want("a", "x") for _ in range(6)]
    assert lines.running == names[:1]
    bound = Load(4, 100)
    await lines.end(names[0])
    assert lines.running == names[1:5]
    assert max(told) == 4
    bound = Load(1, 100)
    for name in names[1:4]:
        await lines.end(name)
        assert names[5] not in lines.running
    await lines.end(names[4])
    assert lines.running == names[5:]


async def test_a_line_beyond_the_bound_goes_alone() -> None:
    lines = lines_of(Load(3, 100))
    small = await lines.want("a", "x")
    for huge_load in (Load(9, 1), Load(1, 1000)):
        huge = await lines.want("a", "x", huge_load)
        assert huge not in lines.running
        await lines.end(small)
        assert lines.running == [huge]
        small = await lines.want("a", "x")
        assert lines.running == [huge]
        await lines.end(huge)
        assert lines.running == [small]


@pytest.mark.parametrize("room", [1, 4])
async def test_tenants_share_alike_however_many_batches_they_have(room: int) -> None:
    lines = lines_of(Load(room, 1000))
    for batch in ("x", "y", "z"):
        for _ in range(30):
            await lines.want("many", batch)
    for _ in range(30):
        await lines.want("one", "w")
    await shares(lines, 8)
    found = await shares(lines, 24)
    assert found["one/w"] == 12
    assert [found[f"many/{batch}"] for batch in ("x", "y", "z")] == [4, 4, 4]


async def test_a_tenant_of_twice_the_weight_gets_twice_as_much() -> None:
    lines = lines_of(Load(6, 1000), {"heavy": 2.0})
    for tenant in ("light", "heavy"):
        for _ in range(40):
            await lines.want(tenant, tenant[0])
    await shares(lines, 12)
    assert await shares(lines, 24) == {"heavy/h": 16, "light/l": 8}


async def test_who_leaves_while_waiting_or_running_holds_up_nobody() -> None:
    lines = lines_of(Load(1, 100))
    first, second, third = [await lines.want("a", "x") for _ in range(3)]
    other = await lines.want("b", "y")
    await lines.cancel(second)
    assert lines.running == [first]
    await lines.cancel(first)
    assert lines.running == [other]
    lines.ends[other].set()  # its end gives the turn to a line that is cancelled at the same time
    lines.tasks[third].cancel()
    await asyncio.wait([lines.tasks[other], lines.tasks[third]])
    last = await lines.want("a", "x")
    assert lines.running == [last]


async def test_a_turn_that_is_cancelled_as_it_is_granted_is_given_back() -> None:
    turns = Turns(lambda own: Load(1, 100), lambda tenant: 1.0)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(turns.turn("a", "x", ONE))

        async def waits() -> None:
            async with turns.turn("a", "x", ONE):
                raise AssertionError("it was cancelled")

        waiting = asyncio.create_task(waits())
        await asyncio.sleep(0)
        await stack.aclose()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
    async with asyncio.timeout(10), turns.turn("a", "x", ONE):
        pass
