"""Answers that can be resumed, on two front ends that share a ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.errors import ConflictError, NotFoundError
from server.gateway.idempotency import IdempotencyCache
from server.gateway.ledger import LedgerState, LocalUsageLedger, RemoteUsageLedger
from server.gateway.messages import Forget, Message, Reply
from server.gateway.recording import event_number, numbered
from server.gateway.recordings import Add, Recordings
from server.gateway.results import MAX_RESULT_BYTES
from server.gateway.streams import ResumableStreams

PATIENCE = 5.0


class Running:
    """An answer that is made as it is told to."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.cancelled = False

    def say(self, *pieces: bytes | None) -> None:
        for piece in pieces:
            self.pieces.put_nowait(piece)

    async def __call__(self, add: Add) -> bool:
        try:
            while (piece := await self.pieces.get()) is not None:
                await add(piece)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("recordings", "sharing"):
        monkeypatch.setattr(f"server.gateway.{module}.POLL_SECONDS", 0.001)


@pytest.fixture
def state() -> LedgerState:
    return LedgerState(VirtualClock(), 0.0)


def front_end(state: LedgerState, name: str) -> tuple[ResumableStreams, IdempotencyCache]:
    async def call(message: Message) -> Reply:
        await asyncio.sleep(0)
        return state.handle(message)

    recordings = Recordings(RemoteUsageLedger(call), name)
    return ResumableStreams(recordings, 1000.0), IdempotencyCache(recordings)


@pytest.fixture
def streams(state: LedgerState) -> ResumableStreams:
    return front_end(state, "here")[0]


@pytest.fixture
def elsewhere(state: LedgerState) -> ResumableStreams:
    return front_end(state, "there")[0]


async def rest(pieces: AsyncGenerator[bytes, None]) -> list[bytes]:
    async with asyncio.timeout(PATIENCE):
        return [piece async for piece in pieces]


async def begun(streams: ResumableStreams, make: Running, *pieces: bytes) -> AsyncGenerator[bytes, None]:
    make.say(*pieces)
    reading = streams.begin("acme", "acme", "s", make)
    assert [await anext(reading) for _ in pieces] == list(pieces)
    return reading


async def test_one_that_is_begun_anew_elsewhere_ends_here(streams: ResumableStreams, elsewhere: ResumableStreams) -> None:
    make, again = Running(), Running()
    first = await begun(streams, make, b"head", b"one")
    third = elsewhere.resume("acme", "acme", "s", 0)
    assert [await anext(third), await anext(third)] == [b"head", b"one"]
    second = await begun(elsewhere, again, b"other")
    for reading in (first, third):
        with pytest.raises(ConflictError, match="was ended"):
            await rest(reading)
    assert make.cancelled
    again.say(b"answer", None)
    assert await rest(second) == [b"answer"]
    for one in (streams, elsewhere):
        assert await rest(one.resume("acme", "acme", "s", 0)) == [b"other", b"answer"]
        assert await rest(one.resume("acme", "acme", "s", 1)) == [b"other"]


async def test_one_that_is_ended_elsewhere_is_gone_everywhere(streams: ResumableStreams, elsewhere: ResumableStreams) -> None:
    make = Running()
    first = await begun(streams, make, b"head")
    await elsewhere.end("acme", "s")
    with pytest.raises(ConflictError):
        await rest(first)
    for one in (streams, elsewhere):
        with pytest.raises(NotFoundError):
            await rest(one.resume("acme", "acme", "s", 0))
        with pytest.raises(NotFoundError):
            await one.end("acme", "s")
        assert await one.listed("acme", "acme") == []


async def test_one_that_is_too_long_is_told_so_while_it_runs_and_after(
    streams: ResumableStreams, elsewhere: ResumableStreams
) -> None:
    make, long = Running(), bytes(MAX_RESULT_BYTES)
    first = await begun(streams, make, b"head", long)
    for _ in range(2):
        for one in (streams, elsewhere):
            with pytest.raises(ConflictError, match="'s' is longer than"):
                await rest(one.resume("acme", "acme", "s", 0))
        make.say(b"more", None)
    assert await rest(first) == [b"more"]
    again = Running()
    again.say(None)
    assert await rest(streams.begin("acme", "acme", "s", again)) == [], "its id is free"


async def test_one_whose_front_end_is_gone_is_not_there(
    state: LedgerState, streams: ResumableStreams, elsewhere: ResumableStreams
) -> None:
    make = Running()
    first = await begun(streams, make, b"head")
    state.forget(Forget("here"))
    with pytest.raises(NotFoundError):
        await rest(elsewhere.resume("acme", "acme", "s", 0))
    make.say(b"one", None)
    again = streams.resume("acme", "acme", "s", 0)
    assert await rest(again) == [b"head", b"one"], "the ledger has forgotten it, but it runs here"
    assert await rest(first) == [b"one"]


async def test_ids_and_idempotency_keys_are_apart(state: LedgerState) -> None:
    streams, answers = front_end(state, "here")
    for key in ("s", "stream", "stream s"):
        make = Running()
        make.say(b"keyed", None)
        assert [item async for item in answers.read("acme", "acme", key, b"", make)] == [(False, b"keyed")]
    with pytest.raises(NotFoundError):
        await rest(streams.resume("acme", "acme", "s", 0))
    assert await streams.listed("acme", "acme") == []
    first = await begun(streams, Running(), b"head")
    (entry,) = await streams.listed("acme", "acme")
    assert (entry.key, entry.state, entry.events) == ("s", "running", None)
    await first.aclose()


async def test_what_is_left_is_bounded_together_with_answers_under_keys(
    state: LedgerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.gateway.recordings.MAX_LEFT_BYTES", 100)
    recordings = Recordings(LocalUsageLedger(state), "here")
    streams, answers = ResumableStreams(recordings, 1000.0), IdempotencyCache(recordings, 1000.0)
    makers = [Running() for _ in range(3)]
    for number, make in enumerate(makers):
        make.say(bytes(40))
        key = str(number)
        reading = answers.read("acme", "acme", key, b"", make) if number == 1 else streams.begin("acme", "acme", key, make)
        await anext(reading)  # type: ignore[arg-type]
        await reading.aclose()
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        while not makers[0].cancelled:
            await asyncio.sleep(0)
    assert [make.cancelled for make in makers] == [True, False, False]
    with pytest.raises(NotFoundError):
        await rest(streams.resume("acme", "acme", "0", 0))
    for make in makers[1:]:
        make.say(None)
    assert await rest(streams.resume("acme", "acme", "2", 0)) == [bytes(40)]


@pytest.mark.parametrize("piece", [b"id: ", b"id: 7", b"id: x\ndata", b"\x93id: 7\ndata", b"", b"data: id: 7\n\n"])
def test_what_is_no_numbered_event_has_no_number(piece: bytes) -> None:
    assert event_number(piece) is None
    assert event_number(numbered(b"data: x\n\n", 12)) == 12


async def test_numbers_of_events_are_listed(streams: ResumableStreams, elsewhere: ResumableStreams) -> None:
    make = Running()
    first = await begun(streams, make, b"head", b"id: 1\ndata: x\n\n", b"id: 2\ndata: x\n\n")
    assert [entry.events for entry in await streams.listed("acme", "acme")] == [2]
    assert [entry.events for entry in await elsewhere.listed("acme", "acme")] == [None]
    make.say(b"id: 3\ndata: x\n\n", None)
    await rest(first)
    for one in (streams, elsewhere):
        async with asyncio.timeout(PATIENCE):
            while (entry := (await one.listed("acme", "acme"))[0]).state != "done":
                await asyncio.sleep(0)
        assert entry.events == 3
