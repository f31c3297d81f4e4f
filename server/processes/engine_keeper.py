"""Keeps an engine process running: starts it, and starts it again when it ends."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

import msgspec

from jaxserve.children import Backoff, describe_exit
from jaxserve.engine.remote.builders import BuildProgress
from jaxserve.engine.remote.process import EngineProcess
from jaxserve.engine.remote.pulse import LOOK_SECONDS, Stillness
from jaxserve.engine.remote.reports import EngineSpec, Move
from jaxserve.errors import EngineDeadError, JaxserveError

_LOG = logging.getLogger(__name__)

STOP_SECONDS = 10.0  # for a step that runs when it is told to end
NOTICE_SECONDS = 0.5  # between two words on how far another start is


class EngineKeeper:
    """One engine at a time.

    Args:
        spec: of the n-th process, counted from 0.
        max_restarts: starts in a row, after one that worked, of engines that do not last; then `run` ends with an error.
        hang_timeout: seconds for which an engine that was ready may stand still before it is killed; 0 for any time.
        on_ready: told what the first engine says of itself.
        on_gone: told the process id of each that ended.
        explain: told why there is no engine now, again and again.
    """

    def __init__(
        self,
        spec: Callable[[int], EngineSpec],
        *,
        max_restarts: int,
        hang_timeout: float,
        on_ready: Callable[[str], None],
        on_gone: Callable[[int], None],
        explain: Callable[[JaxserveError], None],
        progress: BuildProgress,
    ) -> None:
        self._spec = spec
        self._max_restarts = max_restarts
        self._hang_timeout = hang_timeout
        self._on_ready = on_ready
        self._on_gone = on_gone
        self._explain = explain
        self._progress = progress
        self._process: EngineProcess | None = None
        self.up = False
        self._move: Move | None = None
        self._still = 0.0  # seconds for which the latest engine stood still before it was killed; 0 if it was not
        self._start_seconds = 0.0  # that the first start took
        self._noticed = -math.inf

    async def run(self) -> None:
        """Keep the engine running until cancelled.

        Raises what kept the first engine from being built, or EngineDeadError when too many did not last.
        """
        backoff = Backoff()
        number = 0
        while True:
            started = time.monotonic()
            failure = await self._live(number, started)
            restarts = backoff.failed(time.monotonic() - started - self._start_seconds - self._still)
            if restarts > self._max_restarts:
                raise EngineDeadError(f"the engine ended {restarts} times in a row, at last: {failure.message}")
            number += 1
            _LOG.error("%s; it is started again (%d of %d)", failure.message, restarts, self._max_restarts)
            self._explain(EngineDeadError(f"{failure.message}; it is started again", retry_after=self._wait(backoff.seconds)))
            await asyncio.sleep(backoff.seconds)

    async def stop(self) -> None:
        """End the engine after its current step; `run` must have been cancelled."""
        if self._process is not None:
            await self._process.stop(STOP_SECONDS)
            self._on_gone(self._process.pid)

    def move(self, move: Move) -> None:
        """Let the engine, and those after it, listen and share metrics elsewhere."""
        self._move = move
        if self._process is not None:
            self._process.move(move)

    async def _live(self, number: int, started: float) -> JaxserveError:
        """One engine from its start to its end. Returns what it ended of; raises it if it was the first and never ready."""
        try:
            spec = msgspec.structs.replace(self._spec(number), after_hang=self._still > 0.0)
            self._still = 0.0
            self._process = await EngineProcess.start(spec)
            if self._move is not None:  # it may have come in the meantime
                self._process.move(self._move)
        except OSError as error:  # of the machine, which may have what it takes in a moment
            failure = EngineDeadError(f"the engine's process cannot be started: {error}")
            if number == 0:
                raise failure from error
            return failure
        try:
            banner = await self._process.ready(lambda *how_far: self._on_progress(number, *how_far))
        except JaxserveError as error:
            await self._process.ended()
            self._on_gone(self._process.pid)
            if number == 0:
                raise
            return error
        if number == 0:
            self._start_seconds = time.monotonic() - started
            self._on_ready(banner)
        else:
            _LOG.warning("the engine is back after %.1f s", time.monotonic() - started)
        self.up = True
        try:
            code = await self._until_end(self._process)
        finally:
            self.up = False
        self._on_gone(self._process.pid)
        if self._still:
            return EngineDeadError(f"the engine's loop did not turn for {self._still:.0f} s, and its process was killed")
        return EngineDeadError(f"the engine's process ended, {describe_exit(code)}")

    async def _until_end(self, process: EngineProcess) -> int:
        """Wait for an engine's end, and bring it about if it stands still for too long. Returns its exit code."""
        stillness, ending = Stillness(), asyncio.create_task(process.ended())
        try:
            while not ending.done():
                await asyncio.wait((ending,), timeout=LOOK_SECONDS)
                still = stillness.look(process.heartbeat, time.monotonic())
                if 0.0 < self._hang_timeout < still:
                    self._still = still
                    await process.kill()
                    break
            return await ending
        finally:
            ending.cancel()

    def _on_progress(self, number: int, what: str, done: int, total: int) -> None:
        if number == 0:
            self._progress(what, done, total)
            return
        now = time.monotonic()
        if now - self._noticed >= NOTICE_SECONDS:
            self._noticed = now
            how_far = f"the engine ended and is started again: {what}, {done} of {total}"
            self._explain(EngineDeadError(how_far, retry_after=self._wait(0.0)))

    def _wait(self, seconds: float) -> float:
        """Seconds after which to try again: as long as the first start took."""
        return max(1.0, seconds + self._start_seconds)
