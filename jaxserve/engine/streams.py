"""What waits for the reader of a request's events: merged while it waits, and bounded."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field
from sys import getsizeof

from jaxserve.engine.events import Delta, Event, Finished, PositionLogprobs, Started
from jaxserve.errors import DeadlineError, JaxserveError, SlowReaderError

DEMOTED_SHARE = 1 / 8  # of what may wait at most, from which on a request gives way to others

# What a waiting token takes in memory besides its text, and one of its log-probabilities, bytes, about.
_TOKEN_BYTES = 64
_LOGPROB_BYTES = 250


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What readers may leave unread, and how long streams may stand still.

    Attributes:
        max_tokens: output tokens of a request that wait for its reader at most.
        max_bytes: memory that they take at most; what belongs to the prompt is not counted.
        unread_seconds: time for which a reader may take nothing although something waits.
        idle_seconds: time for which a request that has begun may give no token; infinite for no limit.
        stalled_seconds: time without a turn after which the engine counts as hanging, and deadlines are kept without it.
    """

    max_tokens: int = 4096
    max_bytes: int = 4 * 2**20
    unread_seconds: float = 60.0
    idle_seconds: float = math.inf
    stalled_seconds: float = 10.0


@dataclass(slots=True)
class _Joined:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)

    def append(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs or ())


@dataclass(slots=True)
class _Waiting:
    """Deltas of one sequence that wait, as one; mostly it is one."""

    first: Delta
    bytes: int
    joined: _Joined | None = None

    def add(self, delta: Delta) -> None:
        if self.joined is None:
            self.joined = _Joined()
            self.joined.append(self.first)
        self.joined.append(delta)

    def delta(self) -> Delta:
        first, joined = self.first, self.joined
        if joined is None:
            return first
        logprobs = None if first.logprobs is None else tuple(joined.logprobs)
        text, token_ids = "".join(joined.texts), tuple(joined.token_ids)
        return Delta(first.request_id, first.index, text, token_ids, first.first_token_index, logprobs)


class EventBuffer:
    """Events of one request between the engine, which never waits, and a reader, which may be slow.

    A delta of a sequence joins the one that waits already, so that a reader that falls behind gets fewer and longer ones. The
    order within a sequence is kept. Belongs to one event loop, and has one reader.

    Attributes:
        tokens, bytes: that wait: output tokens, and the memory they take.

    Args:
        limits: what may wait.
    """

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._many_tokens, self._many_bytes = DEMOTED_SHARE * limits.max_tokens, DEMOTED_SHARE * limits.max_bytes
        self._items: deque[Started | _Waiting | Finished | JaxserveError] = deque()
        self._open: dict[int, _Waiting] = {}  # sequence -> its deltas that wait
        self._reader: asyncio.Future[None] | None = None
        self.tokens = 0
        self.bytes = 0
        self._puts = self._takes = 0
        self._seen = (0, 0)  # puts and takes at the last check that saw any
        self._since = math.inf  # when that was

    @property
    def empty(self) -> bool:
        return not self._items

    @property
    def behind(self) -> bool:
        """Whether so much waits that the request should give way to others."""
        return self.tokens >= self._many_tokens or self.bytes >= self._many_bytes

    def check(self) -> None:
        """Raise SlowReaderError if more waits than may."""
        limits = self._limits
        if self.tokens > limits.max_tokens or self.bytes > limits.max_bytes:
            raise SlowReaderError(
                f"{self.tokens} tokens ({self.bytes // 1024} KiB) were not read in time; "
                f"at most {limits.max_tokens} ({limits.max_bytes // 1024} KiB) may wait (max_unread_tokens, max_unread_kib)"
            )

    def check_time(self, now: float) -> None:
        """Raise SlowReaderError or DeadlineError if the stream has stood still for too long. To be called now and then.

        `now` is the time by any clock that never jumps, seconds. Time counts from the first call that sees a change.
        """
        seen = (self._puts if self.empty else 0, self._takes)
        if seen != self._seen or not self._puts:
            self._seen, self._since = seen, now
            return
        still = now - self._since
        if not self.empty:
            if still > self._limits.unread_seconds:
                raise SlowReaderError(f"nothing was read for {still:.0f} s though tokens were there (unread_timeout)")
        elif still > self._limits.idle_seconds:
            raise DeadlineError(f"the engine gave no token for {still:.0f} s (token_timeout)")

    def put(self, event: Event) -> None:
        self._puts += 1
        if isinstance(event, Delta):
            size = _size(event)
            self.tokens += len(event.token_ids)
            self.bytes += size
            waiting = self._open.get(event.index)
            if waiting is not None:
                waiting.bytes += size
                waiting.add(event)
                return
            waiting = self._open[event.index] = _Waiting(event, size)
            self._items.append(waiting)
        else:
            self._items.append(event)
        self._wake()

    def fail(self, error: JaxserveError) -> None:
        """End with an error, after what waits."""
        self._items.append(error)
        self._wake()

    async def take(self) -> Event:
        """The next event, when it is there. Raises the error that the stream ends with."""
        while not self._items:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        self._takes += 1
        item = self._items.popleft()
        if isinstance(item, JaxserveError):
            raise item
        if not isinstance(item, _Waiting):
            return item
        delta = item.delta()
        del self._open[delta.index]
        self.tokens -= len(delta.token_ids)
        self.bytes -= item.bytes
        return delta

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _size(delta: Delta) -> int:
    size = getsizeof(delta.text) + _TOKEN_BYTES * len(delta.token_ids)
    if delta.logprobs is not None:
        size += _LOGPROB_BYTES * sum(1 + len(position.top) for position in delta.logprobs)
    return size
