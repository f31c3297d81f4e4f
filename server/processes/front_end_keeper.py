"""Keeps one front-end process running: starts it, answers its calls, and starts it again when it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Mapping

import msgspec

from jaxserve.children import Backoff, Child, spawn
from jaxserve.engine.remote.messages import error_of
from jaxserve.engine.remote.process import how_ended
from jaxserve.errors import JaxserveError
from server.processes.control import Service, answer_calls, notify
from server.processes.specs import ENGINE, FAILED, LISTENING, FrontEndSpec, decode_error

_LOG = logging.getLogger(__name__)

MODULE = "server.processes.frontend"


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
        self._stopping = False
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Keep the front end running until it is told to end. Raises what kept the first from listening."""
        backoff = Backoff()
        number = 0
        while True:
            started = time.monotonic()
            spec = self._spec(number)
            self._child = await spawn(
                MODULE, msgspec.json.encode(spec), pass_fds=(spec.http_socket,), environment=self._environment
            )
            if self._explanation is not None:
                notify(self._child.writer, ENGINE, self._explanation)
            await answer_calls(self._child.reader, self._child.writer, spec.name, self._services)
            code = await self._child.wait()
            self._on_gone(spec.name, self._child.process.pid)
            if self._stopping:
                return
            if self._failure is not None and not self.listening.is_set():
                raise self._failure
            backoff.failed(time.monotonic() - started)
            number += 1
            _LOG.error("front end %s ended, %s; it is started again", spec.name, how_ended(code))
            await asyncio.sleep(backoff.seconds)

    def stop(self) -> None:
        """Let it drain; called again, let it hurry."""
        self._stopping = True
        if self._child is not None:
            self._child.signal(signal.SIGTERM)

    async def kill(self) -> None:
        """End it now."""
        self._stopping = True
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
