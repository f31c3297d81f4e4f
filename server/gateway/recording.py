"""The answer to a request with an idempotency key, as it grows: everyone who comes with the key reads it from its start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from server.gateway.results import MAX_RESULT_BYTES


class Recording:
    """Pieces of an answer, written by the task that makes it and read by any number of clients.

    The task goes on while anybody reads, and is cancelled when the last one has left. An answer longer than is kept takes no
    more readers, and waits for the slowest it has: it is not held as a whole.

    Attributes:
        kept: whether the whole answer is there, or can still be.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._first = 0  # which piece of the answer the list begins with
        self._bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        self._readers: dict[int, int] = {}  # reader -> the piece it wants next
        self._numbers = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.kept = True

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
        if self._bytes > MAX_RESULT_BYTES:
            self.kept = False
            while self._readers and min(self._readers.values()) < self._first + len(self._pieces):
                await self._change()
            self._first += len(self._pieces)
            self._pieces.clear()

    def whole(self) -> list[bytes] | None:
        return self._pieces if self._ended and self.kept and self._error is None else None

    async def read(self) -> AsyncGenerator[bytes, None]:
        """Pieces from the start, then as they come; raises what ended the answer. Only while `kept`."""
        number, self._numbers = self._numbers, self._numbers + 1
        self._readers[number] = 0
        try:
            while True:
                position = self._readers[number]
                if position < self._first + len(self._pieces):
                    yield self._pieces[position - self._first]
                    self._readers[number] = position + 1
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
            if not self._readers and self._task is not None and not self._task.done():
                self.kept = False  # who comes now must not read an answer that breaks off
                self._task.cancel()

    def _on_made(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._error = asyncio.CancelledError()
        else:
            self._error = task.exception()
        self._ended = True
        self._wake()

    async def _change(self) -> None:
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
