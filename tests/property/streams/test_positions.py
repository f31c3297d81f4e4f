"""Wherever readers come and go, on any front end, each gets every event after those that it has, once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import pairwise
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.clock import VirtualClock
from server.gateway.ledger import LedgerState, LocalUsageLedger
from server.gateway.recordings import Add, Recordings
from server.gateway.streams import ResumableStreams
from server.http.streams.numbering import Numbering

HEAD = b"head"
KEEP_ALIVE = b": keep-alive\n\n"

bodies = st.lists(st.text("ab", min_size=1, max_size=3).map(lambda text: b"data: " + text.encode() + b"\n\n"), max_size=12)
cuts = st.lists(st.integers(0, 200), max_size=8)


@given(bodies, cuts, st.sets(st.integers(0, 12)))
def test_events_are_numbered_however_the_body_is_cut(events: list[bytes], places: list[int], quiet: set[int]) -> None:
    body = b"".join((KEEP_ALIVE if place in quiet else b"") + event for place, event in enumerate(events))
    bounds = [0, *sorted(place for place in places if place < len(body)), len(body)]
    number = Numbering()
    found = [one for start, end in pairwise(bounds) for one in number(body[start:end])]
    assert found == [b"id: %d\n%b" % (place, event) for place, event in enumerate(events, 1)]


async def _some(pieces: AsyncGenerator[bytes, None], count: int) -> list[bytes]:
    found: list[bytes] = []
    async with aclosing(pieces):
        async for piece in pieces:
            found.append(piece)
            if len(found) == count:
                break
    return found


visits = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 12), visits, st.booleans())
def test_who_comes_and_goes_gets_everything_once(events: int, plan: list[tuple[int, int, int]], first_reads: bool) -> None:
    """Each visit: at which front end, how many events are read, and how many more are made before."""
    whole = [b"id: %d\ndata: x\n\n" % number for number in range(1, events + 1)]

    async def run() -> None:
        state = LedgerState(VirtualClock(), 0.0)
        ends = [ResumableStreams(Recordings(LocalUsageLedger(state), name), grace=1000.0) for name in ("here", "there")]
        allowed = asyncio.Semaphore(0)

        async def make(add: Add) -> bool:
            await add(HEAD)
            for event in whole:
                await allowed.acquire()
                await add(event)
            return True

        begun = ends[0].begin("", "acme", "s", make)
        assert await anext(begun) == HEAD
        if not first_reads:
            await begun.aclose()
        made, got = 0, 0
        for front_end, wanted, more in plan:
            for _ in range(more):
                allowed.release()
            made = min(made + more, events)
            wanted = min(wanted, made - got)
            found = await _some(ends[front_end].resume("", "acme", "s", got), 1 + wanted)
            assert found == [HEAD, *whole[got : got + wanted]]
            got += wanted
        for _ in whole:
            allowed.release()
        for front_end in (0, 1, 0):
            found = await _some(ends[front_end].resume("", "acme", "s", got), -1)
            assert found == [HEAD, *whole[got:]]
        if first_reads:
            assert [piece async for piece in begun] == whole

    with patch("server.gateway.recordings.POLL_SECONDS", 0.0), patch("server.gateway.sharing.POLL_SECONDS", 0.0):
        asyncio.run(run())
