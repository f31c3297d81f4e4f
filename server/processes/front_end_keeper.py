"""Keeps one front-end process running: starts it, answers its calls, and starts it again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Mapping

import msgspec

from jaxserve.children import Backoff, Child, spawn
from jaxserve.engine.remote.messages import error_of
from jaxserve.engine.remote.process import how_ended
from jaxserve.errors import InternalError, JaxserveError
from server.processes.control import Service, answer_calls, notify
from server.processes.specs import ENGINE, FAILED, LISTENING, FrontEndSpec, decode_error

_LOG = logging.getLogger(__name__)

MODULE = "server.processes.frontend"
MAX_FIRST_FAILURES = 3  # of front ends that never listened, before the server gives up


class FrontEndKeeper:
    """One front end at a time.

    Attributes:
        listening: set once the first listens.

    Args:
        spec: of the n-th process in this place, counted from 0.
        environment: variables that it gets besides ours.
        services: what it may call.
        on_gone: told the name and the process id of each that ended.
    """

    def __init__(
        self,
        spec: Callable[[int], FrontEndSpec],
        *,
        environment: Mapping[str, str],
        services: Mapping[str, Service],
        on_gone: Callable[[str, int], None],
    ) -> None:
        self._spec = spec
        self._environment = environment
        self._services = {**services, LISTENING: self._listens, FAILED: self._fails}
        self._on_gone = on_gone
        self._child: Child | None = None
        self._failure: JaxserveError | None = None
        self._explanation: bytes | None = None
        self._told = asyncio.Event()  # to end
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Keep the front end running until it is told to end. Raises what keeps the first from listening."""
        backoff = Backoff()
        number = 0
        while not self._told.is_set():
            started = time.monotonic()
            spec = self._spec(number)
            how = await self._live(spec)
            if self._told.is_set():
                return
            failures = backoff.failed(time.monotonic() - started)
            if not self.listening.is_set():
                self._check_first(failures, how)
            number += 1
            _LOG.error("front end %s ended, %s; it is started again", spec.name, how)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.seconds):
                    await self._told.wait()

    async def _live(self, spec: FrontEndSpec) -> str:
        """One front end from its start to its end. Returns how it ended, in words."""
        try:
            child = self._child = await spawn(
                MODULE, msgspec.json.encode(spec), pass_fds=(spec.http_socket,), environment=self._environment
            )
        except OSError as error:  # of the machine, which may have what it takes in a moment
            return f"before it was a process: {error}"
        if self._told.is_set():
            child.signal(signal.SIGTERM)
        if self._explanation is not None:
            notify(child.writer, ENGINE, self._explanation)
        await answer_calls(child.reader, child.writer, spec.name, self._services)
        code = await child.wait()
        self._on_gone(spec.name, child.process.pid)
        return how_ended(code)

    def _check_first(self, failures: int, how: str) -> None:
        """Raise what front ends that never listened ended of, if they said so or were too many."""
        if self._failure is not None:
            raise self._failure
        if failures >= MAX_FIRST_FAILURES:
            raise InternalError(f"the front end cannot be started: {failures} ended in a row, at last {how}")

    def stop(self) -> None:
        """Let it drain; called again, let it hurry."""
        self._told.set()
        if self._child is not None:
            self._child.signal(signal.SIGTERM)

    async def kill(self) -> None:
        """End it now."""
        self._told.set()
        if self._child is not None:
            await self._child.kill()

    def explain(self, payload: bytes) -> None:
        """Tell it, and those after it, why there is no engine now; see `specs.ENGINE`."""
        self._explanation = payload
        if self._child is not None:
            notify(self._child.writer, ENGINE, payload)

    def _listens(self, name: str, payload: bytes) -> bytes:
        self.listening.set()
        return b""

    def _fails(self, name: str, payload: bytes) -> bytes:
        self._failure = error_of(decode_error(payload))
        return b""
