"""Keeps a front end or the batch worker running: starts it, answers its calls, and starts it again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxserve.children import Backoff, Child, describe_exit, spawn
from jaxserve.errors import InternalError, JaxserveError
from server.gateway.messages import Reply
from server.processes.control import answer_calls, notify
from server.processes.specs import Notice, NowReady, Question, Request, StartFailed

_LOG = logging.getLogger(__name__)

START_SECONDS = 60.0
LOOK_SECONDS = 0.5
MAX_FIRST_FAILURES = 3  # of processes that were never ready, before the server gives up


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a process is started with.

    Attributes:
        name: unique among all of the server, those that are gone too.
        environment: variables that it gets besides ours.
    """

    name: str
    spec: bytes
    descriptors: Sequence[int]
    environment: Mapping[str, str]


class Keeper:
    """One process at a time.

    Args:
        module: run as `__main__`.
        recipe: of the n-th process in this place, counted from 0.
        serve: answers what it asks, but how its start went.
        engine_up: whether the engine is there, which a process waits for.
        on_gone: told the name and the process id of each that ended.
        start_seconds: beside an engine that is there, in which one must be ready; twice what the first took, if that is longer.
    """

    def __init__(
        self,
        what: str,
        module: str,
        recipe: Callable[[int], Recipe],
        *,
        serve: Callable[[str, Request], Reply | Awaitable[Reply] | None],
        engine_up: Callable[[], bool],
        on_gone: Callable[[str, int], None],
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._what = what
        self._module = module
        self._recipe = recipe
        self._engine_up = engine_up
        self._serve = serve
        self._on_gone = on_gone
        self._child: Child | None = None
        self._failure: JaxserveError | None = None
        self._start_seconds = start_seconds
        self._up = False
        self._late = False  # it was killed because it was not ready in time
        self._notices: dict[type[Notice], Notice] = {}  # the latest of each kind
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
                self._module, recipe.spec, pass_fds=recipe.descriptors, environment=recipe.environment
            )
        except OSError as error:  # of the machine, which may have what it takes in a moment
            return f"before it was a process: {error}"
        if self._told.is_set():
            child.signal(signal.SIGTERM)
        for notice in self._notices.values():
            notify(child.writer, notice)
        self._up = self._late = False
        starting = asyncio.create_task(self._until_up(child, recipe.name))
        try:
            await answer_calls(child.reader, child.writer, recipe.name, self._answer)
            code = await child.wait()
        finally:
            starting.cancel()
        self._on_gone(recipe.name, child.process.pid)
        return "killed because it was not ready in time" if self._late else describe_exit(code)

    async def _until_up(self, child: Child, name: str) -> None:
        """Wait until it is ready. One that follows another, and is not for too long, is killed; the first may take any time."""
        waited = 0.0
        while not self._up:
            await asyncio.sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS if self._engine_up() else -waited
            if not self.ready.is_set():
                self._start_seconds = max(self._start_seconds, 2 * waited)
            elif waited >= self._start_seconds and not self._up:
                _LOG.error("%s %s is not ready after %.0f s beside the engine, and is killed", self._what, name, waited)
                self._late = True
                await child.kill()
                return

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
        self._told.set()
        if self._child is not None:
            await self._child.kill()

    def tell(self, notice: Notice) -> None:
        """Tell it, and those after it, the latest notice of its kind."""
        self._notices[type(notice)] = notice
        if self._child is not None:
            notify(self._child.writer, notice)

    def _answer(self, name: str, question: Question) -> Reply | Awaitable[Reply] | None:
        if isinstance(question, NowReady):
            self._up = True
            self.ready.set()
        elif isinstance(question, StartFailed):
            self._failure = question.error
        else:
            return self._serve(name, question)
        return None
