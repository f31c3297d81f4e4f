"""Watching real engines in processes of their own: who polls, what watchers get, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from jaxserve.engine.calls import EngineCall, Look
from jaxserve.engine.client import EngineClient
from jaxserve.engine.frontend import Frontend
from jaxserve.errors import DrainingError, NotFoundError, OverloadedError
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import RequestOptions, ServiceClass
from server.feed.hub import EngineFeeds
from server.models import ManyModels
from tests.support.hash_engine import engine_fleet, remote_engine
from tests.support.tiny_checkpoint import write_tiny_checkpoint

QUICK = 0.01
PATIENCE = 20.0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
async def front(tokenizer: str) -> AsyncIterator[Frontend]:
    async with remote_engine(tokenizer=tokenizer, step_seconds=0.002) as engine:
        client = await engine.connect()
        yield client
        await client.drain(0.0)


async def run(client: EngineClient, tokens: int, name: str, prompt: str = "to be or not") -> None:
    options = RequestOptions(tenant="t", service_class=ServiceClass.BATCH)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    async for _ in client.generate(prompt, params, request_id=name, options=options):
        pass


async def take(frames: AsyncGenerator[bytes, None]) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        found: dict[str, Any] = msgspec.json.decode(await anext(frames))
    return found


async def take_all(frames: AsyncGenerator[bytes, None]) -> None:
    while True:
        await take(frames)


def steps(frame: dict[str, Any]) -> list[int]:
    return [turn[6] for turn in frame["turns"] if turn[6] >= 0]


class Counted:
    """The client, and how often it was asked to look."""

    def __init__(self, client: Frontend) -> None:
        self._client = client
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def call(self, call: EngineCall[Any]) -> Any:
        self.looks += isinstance(call, Look)
        return await self._client.call(call)


async def test_quick_and_slow_watchers_see_every_turn_once(front: Frontend) -> None:
    feeds = EngineFeeds(front, interval=QUICK)
    async with aclosing(feeds.watch()) as quick, aclosing(feeds.watch()) as slow:
        first = await take(quick)
        assert (first["model"], first["failure"], [one["life"] for one in first["engines"]]) == ("hash", None, [first["engine"]])
        late = await take(slow)
        asking = asyncio.gather(*(run(front, 40, f"each{number}") for number in range(3)))
        seen, next_turn = steps(first), first["first_turn"] + len(first["turns"])
        spans: dict[str, dict[str, Any]] = {}
        rows: set[str] = set()
        while not asking.done() or sum(one["outcome"] == "length" for one in spans.values()) < 3:
            frame = await take(quick)
            assert frame["first_turn"] == next_turn
            next_turn += len(frame["turns"])
            seen += steps(frame)
            spans.update((one["id"], one) for one in frame["spans"])
            rows |= {one["id"] for one in frame["now"]["rows"]}
        await asking
        assert rows == set(spans)
        assert all(one["tenant"] == "t" and one["tokens"] == 40 for one in spans.values())
        behind = await take(slow)
        assert behind["first_turn"] == late["first_turn"] + len(late["turns"])
        assert steps(late) + steps(behind) == seen == list(range(seen[0], seen[-1] + 1))
        assert {one["id"] for one in behind["spans"]} == set(spans), "one frame has what many had"
    assert feeds.num_polled == 0


async def test_who_comes_late_gets_the_last_seconds_and_nobody_asks_twice(front: Frontend) -> None:
    counted = Counted(front)
    feeds = EngineFeeds(counted, interval=QUICK)
    async with aclosing(feeds.watch()) as one:
        await take(one)
        await run(front, 10, "before")
        while not any(span["outcome"] for span in (await take(one))["spans"]):
            pass
        async with aclosing(feeds.watch()) as other:
            frame = await take(other)
            assert "length" in {span["outcome"] for span in frame["spans"]}
            assert len(steps(frame)) >= 10
            before, frames = counted.looks, 0
            for _ in range(20):
                await take(one)
                await take(other)
                frames += 1
            assert counted.looks - before <= frames + 1, "each look is for all"
        assert feeds.num_polled == 1
    looks = counted.looks
    assert feeds.num_polled == 0
    await asyncio.sleep(5 * QUICK)
    assert counted.looks == looks, "nobody watches"


async def test_no_more_than_so_many_watch(front: Frontend) -> None:
    feeds = EngineFeeds(front, interval=QUICK, max_watchers=2)
    async with aclosing(feeds.watch()) as one, aclosing(feeds.watch()) as other:
        await take(one)
        await take(other)
        with pytest.raises(OverloadedError, match="2 watch engines through this front end already, and at most 2 can") as refused:
            await take(feeds.watch())
        assert refused.value.retry_after
        await one.aclose()
        async with aclosing(feeds.watch()) as third:
            await take(third)


async def test_an_engine_that_is_not_there(front: Frontend) -> None:
    feeds = EngineFeeds(front, interval=QUICK)
    with pytest.raises(NotFoundError, match="no engine 'nobody' is there"):
        await take(feeds.watch("nobody"))
    assert feeds.num_polled == 0


async def test_one_engine_of_a_fleet(tokenizer: str) -> None:
    async with engine_fleet(2, tokenizer=tokenizer) as fleet:
        feeds = EngineFeeds(fleet.front, interval=QUICK)
        async with aclosing(feeds.watch()) as busiest:
            first = await take(busiest)
            lives = [one["life"] for one in first["engines"]]
            assert len(set(lives)) == 2
            assert first["engine"] in lives
        for life in lives:
            async with aclosing(feeds.watch(life)) as chosen:
                assert (await take(chosen))["engine"] == life
        of_two = ManyModels([fleet.front, fleet.front])
        async with aclosing(EngineFeeds(of_two, interval=QUICK).watch(lives[1])) as chosen:
            assert (await take(chosen))["engine"] == lives[1]


async def test_an_engine_that_dies_says_of_what_and_where_its_last_steps_are(tokenizer: str, tmp_path: Any) -> None:
    async with remote_engine(tokenizer=tokenizer, fails_at=6, dump_dir=str(tmp_path / "dumps")) as engine:
        client = await engine.connect()
        feeds = EngineFeeds(client, interval=QUICK)
        async with aclosing(feeds.watch()) as frames:
            first = await take(frames)
            assert first["death"] is None
            with pytest.raises(Exception, match="the device is gone"):
                await run(client, 40, "last")
            while (frame := await take(frames))["death"] is None:
                pass
            assert frame["death"]["reason"] == "RuntimeError('the device is gone')"
            (dump,) = (tmp_path / "dumps").iterdir()
            assert frame["death"]["dump"] == str(dump)
            while (frame := await take(frames))["failure"] is None:
                pass
            assert frame["now"] is None
            assert str(dump) not in frame["failure"], "failures are told to everybody"
            await engine.process.ended()
            await engine.restart()
            while (frame := await take(frames))["failure"] is not None:
                pass
            assert frame["engine"] != first["engine"]
            assert frame["first_turn"] == 0
            assert frame["death"]["dump"] == str(dump), "it is still to be known"
        await client.drain(0.0)


async def test_an_engine_that_stands_still_is_said_to(tokenizer: str) -> None:
    async with remote_engine(tokenizer=tokenizer, hangs_at=3) as engine:
        client = await engine.connect()
        feeds = EngineFeeds(client, interval=QUICK)
        async with aclosing(feeds.watch()) as frames:
            await take(frames)
            hung = asyncio.create_task(run(client, 40, "hung"))
            while not (frame := await take(frames))["stalled"]:
                pass
            assert frame["stalled"] > 0.5
            assert frame["failure"] is None
            hung.cancel()
            await asyncio.gather(hung, return_exceptions=True)
        await client.drain(0.0)


async def test_a_drain_ends_it(tokenizer: str) -> None:
    async with remote_engine(tokenizer=tokenizer) as engine:
        client = await engine.connect()
        feeds = EngineFeeds(client, interval=QUICK)
        async with aclosing(feeds.watch()) as frames:
            await take(frames)
            feeds.close()
            with pytest.raises(DrainingError):
                await take_all(frames)
        with pytest.raises(DrainingError):
            await take(feeds.watch())
        assert feeds.num_polled == 0
        await client.drain(0.0)
