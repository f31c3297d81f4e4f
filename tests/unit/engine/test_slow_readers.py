"""Readers that fall behind: their requests give way, then end; nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from jaxserve.clock import RealClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.engine.build import BuiltEngine, EngineReport, MemoryLedger
from jaxserve.engine.core import EngineCore
from jaxserve.engine.events import Delta, Event, Finished, Started
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.intake import Intake
from jaxserve.engine.local import LocalLink
from jaxserve.engine.phases import NO_TIMES
from jaxserve.engine.streams import StreamLimits
from jaxserve.errors import DeadlineError, SlowReaderError
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import RequestOptions, ServiceClass
from tests.support.hash_engine import PAGE, VOCAB, front_end, parts, tools_of
from tests.support.hash_executor import expected
from tests.support.tiny_checkpoint import write_tiny_checkpoint

PROMPT, LENGTH = [72, 101, 108], 240
STEP = 0.001
PATIENCE = 20.0
FEW, VERY_FEW = StreamLimits(max_tokens=160), StreamLimits(max_tokens=8)


class WatchedLink(LocalLink):
    """Notes what the front end says about readers."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.demotions: list[tuple[int, bool]] = []  # of how many sequences

    def demote(self, ids: Any, *, demoted: bool) -> None:
        self.demotions.append((len(ids), demoted))
        super().demote(ids, demoted=demoted)


@dataclass
class Engine:
    client: Frontend
    link: WatchedLink
    core: EngineCore
    streams: list[AsyncGenerator[Event, None]] = field(default_factory=list)

    def ask(self, *, n: int = 1, max_tokens: int = LENGTH, **options: Any) -> AsyncGenerator[Event, None]:
        params = SamplingParams(max_tokens=max_tokens, n=n, ignore_eos=True, temperature=0.0)
        prompt: Any = {"prompt_token_ids": PROMPT}
        stream = cast(AsyncGenerator[Event, None], self.client.generate(prompt, params, options=RequestOptions(**options)))
        self.streams.append(stream)
        return stream

    def batch(self) -> list[bool]:
        return [sequence.batch for sequence in self.core.scheduler.sequences.values()]


@asynccontextmanager
async def engine(tmp_path: Path, limits: StreamLimits, **argument: Any) -> AsyncIterator[Engine]:
    core, description = parts({"tokenizer": str(write_tiny_checkpoint(tmp_path / "tiny")), **argument})
    tools = tools_of(description)
    report = EngineReport(description.model, "int32", "none", PAGE, MemoryLedger(0, 0, 0, 0), SchedulerConfig(), (), NO_TIMES)
    built = BuiltEngine(core, Intake.by_rules(tools.tokenizer, description.rules, ""), tools.tokenizer, None, report, RealClock())
    link = WatchedLink(built, asyncio.get_running_loop())
    running = Engine(front_end(link, description, limits=limits), link, core)
    link.start()
    try:
        yield running
    finally:
        for stream in running.streams:
            await stream.aclose()
        await running.client.drain(0.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


def tokens_of(events: list[Event], index: int = 0) -> list[int]:
    return [token for event in events if isinstance(event, Delta) and event.index == index for token in event.token_ids]


async def test_a_reader_that_falls_behind_gives_way_until_it_has_caught_up(tmp_path: Path) -> None:
    async with engine(tmp_path, FEW, step_seconds=STEP) as running:
        stream = running.ask(n=2)
        events = [await anext(stream)]
        await until(lambda: bool(running.link.demotions))
        assert running.link.demotions == [(2, True)]
        await until(lambda: running.batch() == [True, True])
        events += [await anext(stream) for _ in range(2)]
        assert running.link.demotions == [(2, True), (2, False)]
        await until(lambda: True not in running.batch())
        events += [event async for event in stream]
    wanted = expected(PROMPT, LENGTH, vocab=VOCAB)
    assert [tokens_of(events, index) for index in (0, 1)] == [wanted, wanted]
    assert isinstance(events[0], Started)
    deltas = [event for event in events if isinstance(event, Delta)]
    assert max(len(delta.token_ids) for delta in deltas) >= FEW.max_tokens / 8 / 2, "what waits is one delta a sequence"
    assert [delta.first_token_index for delta in deltas if delta.index == 1] == sorted(
        {delta.first_token_index for delta in deltas if delta.index == 1}
    )


async def test_a_reader_that_does_not_read_loses_its_stream(tmp_path: Path) -> None:
    async with engine(tmp_path, VERY_FEW, step_seconds=0.1) as running:  # it would take longer than anybody waits
        slow = running.ask(n=2)
        events = [await anext(slow)]
        fast = [event async for event in running.ask(max_tokens=20)]
        await until(lambda: running.client.stats().pages_free == running.client.stats().pages_total)
        assert running.client.stats().active == 1, "its reader has not come back"
        with pytest.raises(SlowReaderError, match="max_unread_tokens"):
            await _read_on(slow, events)
        stats = running.client.stats()
        assert (stats.finished, stats.aborted, stats.active) == (1, 1, 0)
    wanted = expected(PROMPT, LENGTH, vocab=VOCAB)
    assert tokens_of(fast) == wanted[:20]
    got = [tokens_of(events, index) for index in (0, 1)]
    assert VERY_FEW.max_tokens < sum(map(len, got)) <= VERY_FEW.max_tokens + 2
    assert got == [wanted[: len(tokens)] for tokens in got]


async def test_a_reader_that_takes_nothing_loses_its_stream(tmp_path: Path) -> None:
    async with engine(tmp_path, StreamLimits(unread_seconds=0.1), step_seconds=0.05) as running:
        stream = running.ask()
        events = [await anext(stream)]
        await until(lambda: running.client.stats().running == 1)
        await until(lambda: running.client.stats().running == 0)
        with pytest.raises(SlowReaderError, match="unread_timeout"):
            await _read_on(stream, events)
    assert 0 < len(tokens_of(events)) < LENGTH


async def test_an_engine_that_gives_no_token(tmp_path: Path) -> None:
    async with engine(tmp_path, StreamLimits(idle_seconds=0.1), step_seconds=1.2) as running:
        batch = asyncio.create_task(_all(running.ask(max_tokens=2, service_class=ServiceClass.BATCH)))
        with pytest.raises(DeadlineError, match="token_timeout"):
            await _all(running.ask(max_tokens=3))
        assert isinstance((await batch)[-1], Finished), "batch is promised no token at any time"


async def test_a_request_that_waits_in_the_queue_is_not_idle(tmp_path: Path) -> None:
    limits = StreamLimits(idle_seconds=0.4, unread_seconds=0.4)
    async with engine(tmp_path, limits, step_seconds=0.02, max_num_seqs=1) as running:
        first = asyncio.create_task(_all(running.ask(max_tokens=100)))
        await until(lambda: running.client.stats().running == 1)
        second = await _all(running.ask(max_tokens=1))
        assert isinstance(second[-1], Finished)
        assert second[-1].timing.queue > 1.0
        await first


async def _read_on(stream: AsyncGenerator[Event, None], events: list[Event]) -> None:
    async for event in stream:
        events.append(event)  # one by one: reading may end with an error


async def _all(stream: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in stream]
