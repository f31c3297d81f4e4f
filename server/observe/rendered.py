"""Texts of paths that need no key: rendered rarely, however many ask for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

SECONDS = 1.0


class RenderedOften:
    """A text that changes: rendered at most once in `seconds`.

    A caller gets a text whose rendering began after it asked, so that nothing it did before is missing. Concurrent callers share
    the next one.
    """

    def __init__(
        self,
        render: Callable[[], Awaitable[bytes]],
        seconds: float = SECONDS,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._render = render
        self._seconds = seconds
        self._now = now
        self._sleep = sleep
        self._began: float | None = None
        self._latest: asyncio.Task[bytes] | None = None  # begun, and perhaps done
        self._next: asyncio.Task[bytes] | None = None  # not begun

    async def text(self) -> bytes:
        """Raises what rendering raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._rendered(self._latest))
        return await asyncio.shield(self._next)  # a caller that leaves does not end it for others

    async def _rendered(self, before: asyncio.Task[bytes] | None) -> bytes:
        if before is not None and not before.done():
            await asyncio.wait([before])
        if self._began is not None:
            await self._sleep(max(self._began + self._seconds - self._now(), 0.0))
        self._began = self._now()
        self._latest, self._next = self._next, None
        return await self._render()


class RenderedOnce:
    """A text that does not change while the process runs: rendered in a thread, the first time that anyone asks."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render = render
        self._task: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """Raises what rendering raises; the next caller then tries again."""
        if self._task is None or (self._task.done() and (self._task.cancelled() or self._task.exception() is not None)):
            self._task = asyncio.create_task(asyncio.to_thread(self._render))
        return await asyncio.shield(self._task)
