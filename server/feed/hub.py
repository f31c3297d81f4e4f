"""Feeds of engines. An engine is asked by one poller of each front end, and only while somebody watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec

from jaxserve.engine.calls import Look
from jaxserve.engine.client import EngineClient
from jaxserve.errors import DrainingError, JaxserveError, NotFoundError, OverloadedError
from jaxserve.metrics.frame import Cursor, EngineLook, EngineSummary
from server.feed.frames import FeedFrame
from server.feed.record import Position, Record

INTERVAL = 0.25  # seconds between two frames
STALLED = 1.0  # seconds without an answer after which watchers are told so
MAX_WATCHERS = 64  # of one front end
_RETRY_SECONDS = 5.0
_CLOSED = "the server is shutting down"

_encode = msgspec.json.Encoder().encode


class EngineFeeds:
    """All feeds of a front end, which start with their first watcher and stop with their last.

    Args:
        interval: seconds between two frames.
        max_watchers: of all feeds together.
    """

    def __init__(self, client: EngineClient, *, interval: float = INTERVAL, max_watchers: int = MAX_WATCHERS) -> None:
        self._client = client
        self._interval = interval
        self._max_watchers = max_watchers
        self._feeds: dict[str, _Feed] = {}
        self._num_watchers = 0
        self._is_closed = False

    @property
    def num_polled(self) -> int:
        """Feeds that ask an engine now."""
        return len(self._feeds)

    def close(self) -> None:
        """The server shuts down: every stream ends, and none begins."""
        self._is_closed = True
        for feed in self._feeds.values():
            feed.end(DrainingError(_CLOSED, retry_after=1.0))

    async def watch(self, engine: str = "") -> AsyncGenerator[bytes, None]:
        """Frames of an engine by its life, or of the one that has most to do; FeedFrame as JSON.

        The first has the last seconds in it. Who reads slowly gets fewer frames with more in each; what is older than is kept
        is lost to it.

        Raises NotFoundError for an engine that is not there or is gone, OverloadedError if too many watch already, and
        DrainingError when the server shuts down.
        """
        if self._is_closed:
            raise DrainingError(_CLOSED, retry_after=1.0)
        if self._num_watchers >= self._max_watchers:
            raise OverloadedError(
                f"{self._num_watchers} watch engines through this front end already, and at most {self._max_watchers} can",
                retry_after=_RETRY_SECONDS,
            )
        feed = self._feeds.get(engine)
        if feed is None:
            feed = self._feeds[engine] = _Feed(self._client, engine, self._interval)
        self._num_watchers += 1
        feed.num_watchers += 1
        try:
            async for frame in feed.frames():
                yield frame
        finally:
            self._num_watchers -= 1
            feed.num_watchers -= 1
            if not feed.num_watchers or feed.is_over:
                if self._feeds.get(engine) is feed:
                    del self._feeds[engine]
                await feed.stop()


class _Feed:
    """One engine, and those who watch it."""

    def __init__(self, client: EngineClient, chosen: str, interval: float) -> None:
        self._client = client
        self._chosen = chosen
        self._interval = interval
        self._cursor = Cursor(chosen)
        self._record: Record | None = None
        self._engines: list[EngineSummary] = []
        self._stalled = 0.0
        self._failure: str | None = None
        self._end: JaxserveError | None = None
        self._number = 0  # of the latest frame
        self._news = asyncio.Event()
        self._made: dict[tuple[str, Position], bytes] = {}  # the latest frame, for each position that somebody is at
        self.num_watchers = 0
        self._polling = asyncio.create_task(self._poll())

    @property
    def is_over(self) -> bool:
        return self._end is not None

    def end(self, error: JaxserveError) -> None:
        """Tell all who watch that there is no more, and why."""
        self._end = error
        self._tell()

    async def stop(self) -> None:
        self._polling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._polling

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Frames for one watcher: the latest whenever it is ready for one, with all that it does not know yet."""
        number, life, seen = 0, "", Position()
        while True:
            while self._number == number and self._end is None:
                await self._news.wait()
            if self._end is not None:
                raise self._end.copy()
            if life != self._cursor.life:
                life, seen = self._cursor.life, Position()
            number = self._number
            content = self._frame(life, seen)
            if self._record is not None:
                seen = self._record.position
            yield content

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        asking: asyncio.Task[None] | None = None
        try:
            while self._end is None:
                began = loop.time()
                if asking is None:
                    asking = asyncio.create_task(self._look())
                await asyncio.wait((asking,), timeout=STALLED)
                if asking.done():
                    asking, self._stalled = None, 0.0
                else:
                    self._stalled = self._client.heartbeat_age()
                self._tell()
                await asyncio.sleep(max(0.0, began + self._interval - loop.time()))
        finally:
            if asking is not None:
                asking.cancel()

    def _tell(self) -> None:
        self._number += 1
        self._made.clear()
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _look(self) -> None:
        """Ask the engine what is new; whatever goes wrong is told, and the next look may be better."""
        try:
            look = await self._client.call(Look(self._cursor))
            if look.frame is None:
                self._choose(look.engines)
                look = await self._client.call(Look(self._cursor))
            self._take(look)
        except NotFoundError as error:
            self._end = error
        except JaxserveError as error:
            self._failure = error.message
            self._engines = []

    def _choose(self, engines: list[EngineSummary]) -> None:
        """The engine that was watched is not there: take another, unless that one was wanted."""
        if self._chosen:
            there = ", ".join(one.life for one in engines)
            raise NotFoundError(f"no engine {self._chosen!r} is there: {there}", param="engine")
        busiest = max(engines, key=lambda one: one.running + one.waiting)
        self._cursor, self._record = Cursor(busiest.life), None

    def _take(self, look: EngineLook) -> None:
        self._engines = look.engines
        self._failure = None
        if look.frame is None:  # it ended between the two calls
            return
        if self._record is None:
            self._record = Record(look.frame)
        else:
            self._record.take(look.frame)
        self._cursor = look.frame.next

    def _frame(self, life: str, seen: Position) -> bytes:
        """The latest frame for who is at a position: made once for all that are there."""
        key = life, seen
        if key not in self._made:
            self._made[key] = _encode(self._new(seen))
        return self._made[key]

    def _new(self, seen: Position) -> FeedFrame:
        record, death = self._record, self._client.death
        if record is None or self._failure is not None:
            return FeedFrame(
                engines=self._engines, interval=self._interval, failure=self._failure, stalled=self._stalled, death=death
            )
        latest, news = record.latest, record.since(seen)
        return FeedFrame(
            engine=self._cursor.life,
            model=next((one.model for one in self._engines if one.life == self._cursor.life), ""),
            engines=self._engines,
            interval=self._interval,
            clock=latest.clock,
            unix=latest.unix,
            first_turn=news.first_turn,
            turns=news.turns,
            generated=latest.generated,
            spans=news.spans,
            first_preemption=news.first_preemption,
            preempted=news.preempted,
            now=latest.now,
            programs=latest.programs,
            speculation=latest.speculation,
            weight_version=latest.weight_version,
            paused=latest.paused,
            stalled=self._stalled,
            death=death,
        )
