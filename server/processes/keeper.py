"""Keeps a front end or the batch worker running: starts it, answers its calls, and starts it again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxserve.children import Backoff, Child, spawn
from jaxserve.engine.remote.messages import error_of
from jaxserve.engine.remote.process import how_ended
from jaxserve.errors import InternalError, JaxserveError
from server.processes.control import Service, answer_calls, notify
from server.processes.specs import ENGINE, FAILED, READY, decode_error

_LOG = logging.getLogger(__name__)

MAX_FIRST_FAILURES = 3  # of processes that were never ready, before the server gives up


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a process is started with.

    Attributes:
        name: unique among all of the server, those that are gone too.
        spec: its first message.
        descriptors: files that it inherits.
    """

    name: str
    spec: bytes
    descriptors: Sequence[int]


class Keeper:
    """One process at a time.

    Attributes:
        ready: set once the first is.

    Args:
        what: what it is, in words.
        module: run as `__main__`.
        recipe: of the n-th process in this place, counted from 0.
        environment: variables that it gets besides ours.
        services: what it may call.
        on_gone: told the name and the process id of each that ended.
    """

    def __init__(
        self,
        what: str,
        module: str,
        recipe: Callable[[int], Recipe],
        *,
        environment: Mapping[str, str],
        services: Mapping[str, Service],
        on_gone: Callable[[str, int], None],
    ) -> None:
        self._what = what
        self._module = module
        self._recipe = recipe
        self._environment = environment
        self._services = {**services, READY: self._is_ready, FAILED: self._fails}
        self._on_gone = on_gone
        self._child: Child | None = None
        self._failure: JaxserveError | None = None
        self._explanation: bytes | None = None
        self._told = asyncio.Event()  # to end
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Keep the process running until it is told to end. Raises what keeps the first from being ready."""
        backoff = Backoff()
        number = 0
        while not self._told.is_set():
            started = time.monotonic()
            recipe = self._recipe(number)
            how = await self._live(recipe)
            if self._told.is_set():
                return
            failures = backoff.failed(time.monotonic() - started)
            if not self.ready.is_set():
                self._check_first(failures, how)
            number += 1
            _LOG.error("%s %s ended, %s; it is started again", self._what, recipe.name, how)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.seconds):
                    await self._told.wait()

    async def _live(self, recipe: Recipe) -> str:
        """One process from its start to its end. Returns how it ended, in words."""
        try:
            child = self._child = await spawn(
                self._module, recipe.spec, pass_fds=recipe.descriptors, environment=self._environment
            )
        except OSError as error:  # of the machine, which may have what it takes in a moment
            return f"before it was a process: {error}"
        if self._told.is_set():
            child.signal(signal.SIGTERM)
        if self._explanation is not None:
            notify(child.writer, ENGINE, self._explanation)
        await answer_calls(child.reader, child.writer, recipe.name, self._services)
        code = await child.wait()
        self._on_gone(recipe.name, child.process.pid)
        return how_ended(code)

    def _check_first(self, failures: int, how: str) -> None:
        """Raise what those that were never ready ended of, if they said so or were too many."""
        if self._failure is not None:
            raise self._failure
        if failures >= MAX_FIRST_FAILURES:
            raise InternalError(f"the {self._what} cannot be started: {failures} ended in a row, at last {how}")

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

    def _is_ready(self, name: str, payload: bytes) -> bytes:
        self.ready.set()
        return b""

    def _fails(self, name: str, payload: bytes) -> bytes:
        self._failure = error_of(decode_error(payload))
        return b""
