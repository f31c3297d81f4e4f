"""An answer that is recorded as it grows: everyone who comes for it reads it from its start, or from where they were."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from jaxserve.errors import ConflictError
from server.gateway.results import MAX_RESULT_BYTES

_NUMBER = b"id: "  # begins the line of an event that says how many there are up to it


class Recording:
    """Pieces of an answer, written by the task that makes it and read by any number of clients.

    The task goes on while anybody reads, here or on another front end, and for a time after the last one has left, which may
    come back; then it is cancelled. An answer longer than is kept takes no more readers, and waits for the slowest it has: it is
    not held as a whole.

    Args:
        fingerprint: digest of the request.

    Attributes:
        kept: whether the whole answer is there, or can still be.
        too_long: whether it is not because of its length.
    """

    def __init__(self, fingerprint: bytes = b"") -> None:
        self.fingerprint = fingerprint
        self._pieces: list[bytes] = []
        self._first = 0  # which piece of the answer the list begins with
        self._bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        self._readers: dict[int, int] = {}  # reader -> the piece it wants next
        self._numbers = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._grace = 0.0  # that the last reader asked for
        self._followed = -math.inf  # until when somebody reads it elsewhere
        self._giving_up: asyncio.TimerHandle | None = None
        self._revoked = False
        self.kept = True

    @property
    def too_long(self) -> bool:
        return self._bytes > MAX_RESULT_BYTES

    @property
    def pieces(self) -> int:
        """How many there are so far."""
        return self._first + len(self._pieces)

    @property
    def events(self) -> int | None:
        """How many events of a stream there are so far; None if it is none, or is no longer held."""
        return event_number(self._pieces[-1]) if self._pieces else None

    @property
    def left(self) -> bool:
        """Whether it goes on though nobody reads it."""
        return self._giving_up is not None

    @property
    def held_bytes(self) -> int:
        return self._bytes if self.kept else 0

    def start(self, making: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin to make the answer; `making` calls `add`. How it ends is how reading ends."""
        self._task = asyncio.create_task(making)
        self._task.add_done_callback(self._on_made)
        return self._task

    async def add(self, piece: bytes) -> None:
        """Append a piece; waits for readers once the answer is too long to be kept."""
        self._pieces.append(piece)
        self._bytes += len(piece)
        self._wake()
        if self.too_long:
            self.kept = False
            if self.left:
                self.give_up()  # nobody can come back to it
                await asyncio.sleep(0)
            while self._readers and min(self._readers.values()) < self.pieces:
                await self._change()
            self._first += len(self._pieces)
            self._pieces.clear()

    def whole(self) -> list[bytes] | None:
        return self._pieces if self._ended and self.kept and self._error is None else None

    def after(self, count: int) -> list[bytes]:
        """The pieces after the first so many; while `kept`."""
        return self._pieces[count:]

    def follow(self, seconds: float) -> None:
        """Somebody reads it elsewhere, and says so again within so many seconds."""
        self._followed = asyncio.get_running_loop().time() + seconds
        if self.left:
            self._leave()

    def give_up(self) -> None:
        """Nobody will read it any more."""
        self._stay()
        if self._task is not None and not self._task.done():
            self.kept = False  # who comes now must not read an answer that breaks off
            self._task.cancel()

    def revoke(self) -> None:
        """Nobody is to read it any more: it ends, and those who read it get a ConflictError."""
        self._revoked = True
        self.give_up()

    async def read(self, grace: float = 0.0, skip: int = 0) -> AsyncGenerator[bytes, None]:
        """Pieces from the start, then as they come; raises what ended the answer. Only while `kept`.

        Args:
            grace: seconds that the answer goes on after this reader has left, if it was the last.
            skip: pieces after the first that are left out.
        """
        number, self._numbers = self._numbers, self._numbers + 1
        self._readers[number] = 0
        self._stay()
        try:
            while True:
                position = self._readers[number]
                if position < self.pieces:
                    yield self._pieces[position - self._first]
                    self._readers[number] = position + 1 if position else 1 + skip
                    self._wake()
                elif self._error is not None:
                    raise self._error
                elif self._ended:
                    return
                else:
                    await self._change()
        finally:
            del self._readers[number]
            self._wake()
            if not self._readers:
                self._grace = grace
                self._leave()

    def _leave(self) -> None:
        """The last reader has left: give up in a while, at once if it cannot come back."""
        self._stay()
        if self._task is None or self._task.done():
            return
        loop = asyncio.get_running_loop()
        seconds = max(self._grace, self._followed - loop.time())
        if self.kept and seconds > 0.0:
            self._giving_up = loop.call_later(seconds, self.give_up)
        else:
            self.give_up()

    def _stay(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _on_made(self, task: asyncio.Task[None]) -> None:
        self._stay()
        if task.cancelled():
            self._error = ended() if self._revoked else asyncio.CancelledError()
        else:
            self._error = task.exception()
        self._ended = True
        self._wake()

    async def _change(self) -> None:
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def event_number(piece: bytes) -> int | None:
    """Which event of its stream a piece is; None if it is none with a number."""
    name, number, rest = piece[: len(_NUMBER)], *piece[len(_NUMBER) :].partition(b"\n")[::2]
    return int(number) if name == _NUMBER and number.isdigit() and rest else None


def numbered(event: bytes, number: int) -> bytes:
    """An event with its number, as the protocol of server-sent events has it."""
    return b"%b%d\n%b" % (_NUMBER, number, event)


def ended() -> ConflictError:
    return ConflictError("this answer was ended: a later request has its id, or it was deleted")
