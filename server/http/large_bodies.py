"""Large bodies are read in turns: reading one holds up the event loop, so others have it for as long before the next is read."""

from __future__ import annotations

import asyncio
import time

LARGE = 64 * 1024  # bytes: smaller ones take a few milliseconds at most


class LargeBodies:
    """Whose turn it is; belongs to one event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def turn(self, size: int) -> None:
        """Wait until a body of so many bytes may be read. All that its task does before it waits again counts as reading."""
        if size < LARGE:
            return
        await self._turn.acquire()
        asyncio.get_running_loop().call_soon(self._over, time.perf_counter())

    def _over(self, began: float) -> None:
        """The reading task waits for something."""
        asyncio.get_running_loop().call_later(time.perf_counter() - began, self._turn.release)
