"""What waits for a reader: merged, counted, bounded."""

from __future__ import annotations

import asyncio
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.engine.events import Delta, Event, Finished, PositionLogprobs, Started, Timing, TokenLogprob, Usage
from jaxserve.engine.streams import DEMOTED_SHARE, EventBuffer, StreamLimits
from jaxserve.errors import DeadlineError, InternalError, SlowReaderError
from jaxserve.types import FinishReason

STARTED = Started("r", (1, 2), 0, 0.0)
LIMITS = StreamLimits(max_tokens=16, max_bytes=100_000, unread_seconds=5.0, idle_seconds=7.0)


def delta(position: int, index: int = 0, tops: int | None = None) -> Delta:
    logprobs = None
    if tops is not None:
        one = TokenLogprob(position, -1.0, 1, str(position), b"x")
        logprobs = (PositionLogprobs(one, (one,) * tops),)
    return Delta("r", index, f"<{position}>", (position,), position, logprobs)


def finished(index: int = 0) -> Finished:
    return Finished("r", index, FinishReason.LENGTH, None, Usage(2, 1, 0), Timing(0.0, 0.0, 0.0))


async def take_all(buffer: EventBuffer) -> list[Event]:
    events = []
    while not buffer.empty:
        events.append(await buffer.take())
    return events


async def test_a_reader_that_keeps_up_gets_events_as_they_come() -> None:
    buffer = EventBuffer(LIMITS)
    for event in (STARTED, delta(0), delta(1), finished()):
        reading = asyncio.create_task(buffer.take())
        await asyncio.sleep(0)
        assert not reading.done()
        buffer.put(event)
        assert await reading is event


async def test_deltas_that_wait_are_one() -> None:
    buffer = EventBuffer(LIMITS)
    for event in (STARTED, delta(0, tops=1), delta(1, tops=0), delta(2, tops=2), finished()):
        buffer.put(event)
    first, merged, last = await take_all(buffer)
    assert (first, last) == (STARTED, finished())
    assert isinstance(merged, Delta)
    assert (merged.text, merged.token_ids, merged.first_token_index) == ("<0><1><2>", (0, 1, 2), 0)
    assert merged.logprobs is not None
    assert [(position.chosen.token_id, len(position.top)) for position in merged.logprobs] == [(0, 1), (1, 0), (2, 2)]


@given(st.lists(st.one_of(st.integers(0, 2), st.none()), max_size=40))
def test_nothing_is_lost_or_reordered_within_a_sequence(steps: list[int | None]) -> None:
    """Numbers put a token of that sequence, None takes an event."""

    async def run() -> None:
        buffer = EventBuffer(LIMITS)
        put: dict[int, list[int]] = {0: [], 1: [], 2: []}
        taken: dict[int, list[int]] = {0: [], 1: [], 2: []}

        async def take() -> None:
            event = await buffer.take()
            assert isinstance(event, Delta)
            assert event.first_token_index == len(taken[event.index])
            taken[event.index] += event.token_ids
            assert event.text == "".join(f"<{token}>" for token in event.token_ids)

        for step in steps:
            if step is not None:
                buffer.put(delta(len(put[step]), step))
                put[step].append(len(put[step]))
            elif not buffer.empty:
                await take()
            waiting = sum(map(len, put.values())) - sum(map(len, taken.values()))
            assert buffer.tokens == waiting
            assert (buffer.bytes > 0) == (waiting > 0) == (not buffer.empty)
        while not buffer.empty:
            await take()
        assert put == taken
        assert (buffer.tokens, buffer.bytes) == (0, 0)

    asyncio.run(run())


async def test_at_most_one_item_a_sequence_waits() -> None:
    buffer = EventBuffer(LIMITS)
    for position in range(5):
        for index in range(3):
            buffer.put(delta(position, index))
    events = await take_all(buffer)
    assert [(event.index, event.token_ids) for event in events if isinstance(event, Delta)] == [
        (index, (0, 1, 2, 3, 4)) for index, _ in groupby(range(3))
    ]


async def test_too_many_tokens() -> None:
    buffer = EventBuffer(LIMITS)
    behind = []
    for position in range(LIMITS.max_tokens):
        buffer.put(delta(position))
        buffer.check()
        behind.append(buffer.behind)
    assert behind == [position + 1 >= DEMOTED_SHARE * LIMITS.max_tokens for position in range(LIMITS.max_tokens)]
    buffer.put(delta(LIMITS.max_tokens))
    with pytest.raises(SlowReaderError, match=r"17 tokens .* at most 16 .*max_unread_tokens"):
        buffer.check()
    await buffer.take()
    buffer.check()
    assert not buffer.behind


def test_too_many_bytes() -> None:
    buffer = EventBuffer(StreamLimits(max_tokens=1000, max_bytes=20_000))
    buffer.put(delta(0, tops=1))
    assert not buffer.behind
    buffer.put(delta(1, tops=20))
    assert buffer.behind
    buffer.check()
    for position in range(2, 5):
        buffer.put(delta(position, tops=20))
    with pytest.raises(SlowReaderError, match="at most 1000"):
        buffer.check()


def test_a_prompts_scores_do_not_count() -> None:
    buffer = EventBuffer(StreamLimits(max_bytes=1))
    buffer.put(Started("r", (1,) * 10_000, 0, 0.0, (None,) * 10_000))
    buffer.check()
    assert not buffer.behind


async def test_an_error_comes_last() -> None:
    buffer = EventBuffer(LIMITS)
    buffer.put(delta(0))
    buffer.fail(InternalError("broken"))
    assert await buffer.take() == delta(0)
    with pytest.raises(InternalError, match="broken"):
        await buffer.take()


async def test_an_error_wakes_the_reader() -> None:
    buffer = EventBuffer(LIMITS)
    reading = asyncio.create_task(buffer.take())
    await asyncio.sleep(0)
    buffer.fail(InternalError("broken"))
    with pytest.raises(InternalError):
        await reading


async def test_a_reader_that_was_cancelled_loses_nothing() -> None:
    buffer = EventBuffer(LIMITS)
    reading = asyncio.create_task(buffer.take())
    await asyncio.sleep(0)
    buffer.put(delta(0))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await buffer.take() == delta(0)


async def test_a_reader_that_takes_nothing() -> None:
    buffer = EventBuffer(LIMITS)
    buffer.put(STARTED)
    buffer.put(delta(0))
    buffer.check_time(10.0)
    buffer.put(delta(1))  # the engine goes on, the reader does not
    buffer.check_time(15.0)
    await buffer.take()
    buffer.check_time(15.5)  # it took something
    buffer.check_time(20.5)
    with pytest.raises(SlowReaderError, match="unread_timeout"):
        buffer.check_time(20.6)


async def test_an_engine_that_gives_nothing() -> None:
    buffer = EventBuffer(LIMITS)
    for now in (0.0, 100.0):  # it has not begun: the queue may be long
        buffer.check_time(now)
    buffer.put(STARTED)
    await buffer.take()
    buffer.check_time(200.0)
    buffer.check_time(207.0)
    buffer.put(delta(0))
    await buffer.take()
    buffer.check_time(207.1)
    buffer.check_time(214.0)
    with pytest.raises(DeadlineError, match="token_timeout"):
        buffer.check_time(214.2)
