"""The engine thread: the only owner of scheduler and cache, fed through one inbox, so there are no locks."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxserve.engine.core import EngineCore
from jaxserve.errors import JaxserveError
from jaxserve.scheduler.request import EngineRequest
from jaxserve.scheduler.update import Update

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The sequences of a request that the scheduler did not take."""

    ids: tuple[str, ...]
    error: JaxserveError


@dataclass(frozen=True, slots=True)
class _Add:
    requests: Sequence[EngineRequest]


@dataclass(frozen=True, slots=True)
class _Abort:
    ids: Sequence[str]


Outcome = Update | Refusal


class EngineLoop:
    """Runs an EngineCore in a thread.

    Args:
        core: driven by this thread alone from `start` on.
        sink: called in the engine thread with what each turn produced; must not block.
        on_death: called in the engine thread with the exception that ended the loop.
    """

    def __init__(
        self, core: EngineCore, sink: Callable[[list[Outcome]], None], on_death: Callable[[BaseException], None]
    ) -> None:
        self._core = core
        self._sink = sink
        self._on_death = on_death
        self._inbox: queue.SimpleQueue[_Add | _Abort | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="jaxserve-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Hand over the sequences of one request."""
        self._inbox.put(_Add(requests))

    def abort(self, ids: Sequence[str]) -> None:
        """End sequences at the next turn; unknown ones are passed over."""
        self._inbox.put(_Abort(ids))

    def stop(self) -> None:
        """End the thread after its current turn and wait for it."""
        self._inbox.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_messages():
                updates = self._core.step()
                if updates:
                    self._sink(list(updates))
        except Exception as error:
            logger.exception("the engine loop died")
            self._on_death(error)

    def _take_messages(self) -> bool:
        """Take in all messages, waiting for one if there is nothing to do; False to stop."""
        refusals: list[Outcome] = []
        while True:
            try:
                message = self._inbox.get(block=not self._core.has_work and not refusals)
            except queue.Empty:
                break
            if message is None:
                return False
            if isinstance(message, _Abort):
                self._core.abort(message.ids)
                continue
            try:
                self._core.add(message.requests)
            except JaxserveError as error:
                refusals.append(Refusal(tuple(request.id for request in message.requests), error))
        if refusals:
            self._sink(refusals)
        return True
