"""The engine thread: the only owner of scheduler and cache, fed through one inbox, so there are no locks."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from jaxserve.engine.apart import Apart
from jaxserve.engine.core import EngineCore
from jaxserve.errors import EngineDeadError, JaxserveError, QueueFullError, contained, is_containable
from jaxserve.scheduler.request import EngineRequest, Update

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

MAX_PREPARING = 512  # requests that wait for their grammars or adapters; at most the free places for one tenant
IDLE_SECONDS = 0.25  # between two heartbeats of a loop that has nothing to do


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """The sequences of a request that the scheduler did not take."""

    ids: tuple[str, ...]
    error: JaxserveError


@dataclass(frozen=True, slots=True)
class _Add:
    requests: Sequence[EngineRequest]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a request waited for outside of the scheduler is there, or is known to be impossible."""

    id: str


@dataclass(frozen=True, slots=True)
class _Abort:
    ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Demote:
    ids: Sequence[str]
    demoted: bool


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[EngineCore], Any]
    done: Future[Any] = field(default_factory=Future)


TurnOutcome = Update | Refusal


class EngineLoop:
    """Runs an EngineCore in a thread.

    Attributes:
        heartbeat: time of its latest turn, by the machine's monotonic clock; old while a step hangs, never while it is idle.

    Args:
        core: driven by this thread alone from `start` on.
        sink: called with what each turn produced, in the engine thread, or in that of `add` with a refusal; must not block.
        on_death: called in the engine thread with the exception that ended the loop.
    """

    def __init__(
        self, core: EngineCore, sink: Callable[[list[TurnOutcome]], None], on_death: Callable[[BaseException], None]
    ) -> None:
        self._core = core
        core.beat = self._beat
        self._sink = sink
        self._on_death = on_death
        self._inbox: queue.SimpleQueue[_Add | _Prepared | _Abort | _Demote | _Call | None] = queue.SimpleQueue()
        self._preparing: dict[str, tuple[Sequence[EngineRequest], set[str]]] = {}  # by first id; with ids aborted meanwhile
        self._ended = threading.Event()
        self.heartbeat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="jaxserve-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Hand over the sequences of one request; in an overload it may be refused here. One thread does this."""
        error: JaxserveError | None
        try:
            error = self._core.scheduler.gate.refusal(requests)
        except Exception as failure:
            error = _contained(failure)
        if error is None:
            self._inbox.put(_Add(requests))
        else:
            self._sink([Refusal(tuple(request.id for request in requests), error)])

    def abort(self, ids: Sequence[str]) -> None:
        self._inbox.put(_Abort(ids))

    def demote(self, ids: Sequence[str], *, demoted: bool) -> None:
        self._inbox.put(_Demote(ids, demoted))

    def call(self, function: Callable[[EngineCore], Result]) -> Future[Result]:
        """Run a function between two turns, in the thread that owns scheduler and cache.

        The future ends with what the function raised, or with EngineDeadError if the loop has ended.
        """
        call = _Call(function)
        self._inbox.put(call)
        if self._ended.is_set():
            self._refuse_calls()
        return call.done

    def stop(self) -> None:
        self._inbox.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        with self._core.settings():
            self._turn_until_stopped()

    def _turn_until_stopped(self) -> None:
        try:
            while self._take_messages():
                updates = self._core.step()
                if updates:
                    self._sink(list(updates))
                self._core.emitted()
        except BaseException as error:  # a panic of a Rust extension is no Exception
            logger.exception("the engine loop died")
            self._on_death(error)
        finally:
            self._ended.set()  # first: a call that comes now refuses itself
            self._refuse_calls()
            self._core.close()

    def _take_messages(self) -> bool:
        """Take in all messages, waiting for one if there is nothing to do; False to stop."""
        refusals: list[TurnOutcome] = []
        while True:
            self._turned()
            waits = not self._core.has_work and not refusals
            try:
                message = self._inbox.get(block=waits, timeout=IDLE_SECONDS)
            except queue.Empty:
                if waits:
                    self._core.begin(None)
                    if self._core.intact is not None:
                        self._core.intact()
                    if self._core.pause.is_on:
                        self._core.expire()
                    continue
                break
            if message is None:
                return False
            if isinstance(message, _Abort):
                self._abort(message.ids)
                continue
            if isinstance(message, _Demote):
                self._core.demote(message.ids, demoted=message.demoted)
                continue
            if isinstance(message, _Call):
                self._core.begin(None)
                self._answer(message)
                self._core.check_alive()
                self._core.tell()
                continue
            refused = self._add(message)
            if refused is not None:
                refusals.append(refused)
        if refusals:
            self._sink(refusals)
        return True

    def _abort(self, ids: Sequence[str]) -> None:
        gone = set(ids)
        for name, (requests, aborted) in list(self._preparing.items()):
            aborted.update(request.id for request in requests if request.id in gone)
            if len(aborted) == len(requests):
                del self._preparing[name]
                self._core.release(requests)
        self._core.abort(ids)

    def _add(self, message: _Add | _Prepared) -> Refusal | None:
        aborted: set[str] = set()
        if isinstance(message, _Prepared):
            if message.id not in self._preparing:  # aborted
                return None
            requests, aborted = self._preparing.pop(message.id)
        else:
            requests = message.requests
        waits = False
        try:
            waits = isinstance(message, _Add) and self._waits(requests)
            if not waits:
                self._core.add(requests)
        except BaseException as error:
            ends_engine = self._core.death is not None and not isinstance(error, JaxserveError)
            if ends_engine or not is_containable(error):
                raise
            return Refusal(tuple(request.id for request in requests), _contained(error))
        finally:
            if not waits:
                self._core.release(requests)
        self._core.abort(aborted)
        return None

    def _waits(self, requests: Sequence[EngineRequest]) -> bool:
        """Whether a request waits for its grammar: outside of the queue, where it holds nothing."""
        ready = self._core.prepare(requests)
        if ready is None or ready.done():
            return False
        self._check_places(requests[0].tenant)
        name = requests[0].id
        self._preparing[name] = requests, set()
        ready.add_done_callback(lambda _: self._inbox.put(_Prepared(name)))
        return True

    def _check_places(self, tenant: str) -> None:
        """Raise QueueFullError if a tenant has as many requests waiting as there are free places."""
        own = sum(requests[0].tenant == tenant for requests, _ in self._preparing.values())
        if own >= MAX_PREPARING - len(self._preparing):
            raise QueueFullError(
                f"{own} requests of the tenant wait for their grammars to be compiled, as many as places are free "
                f"(of {MAX_PREPARING})",
                retry_after=1.0,
            )

    def _answer(self, call: _Call) -> None:
        if not call.done.set_running_or_notify_cancel():
            return
        try:
            answer = call.function(self._core)
        except Exception as error:
            call.done.set_exception(error)
        else:
            if isinstance(answer, Future):  # it takes turns
                answer.add_done_callback(partial(_pass_on, call.done))
            elif isinstance(answer, Apart):
                threading.Thread(target=self._work, args=(answer, call.done), name="jaxserve-call", daemon=True).start()
            else:
                call.done.set_result(answer)

    def _work(self, apart: Apart[Any, Any], done: Future[Any]) -> None:
        """In a thread of its own."""
        try:
            with self._core.settings():
                made = apart.work()
        except Exception as error:
            done.set_exception(error)
        else:
            if (then := apart.then) is None:
                done.set_result(made)
            else:
                self.call(lambda core: then(made)).add_done_callback(partial(_pass_on, done))

    def _turned(self) -> None:
        self.heartbeat = time.monotonic()
        self._core.begin(IDLE_SECONDS)

    def _beat(self) -> None:
        self.heartbeat = time.monotonic()

    def _refuse_calls(self) -> None:
        while True:
            try:
                message = self._inbox.get(block=False)
            except queue.Empty:
                return
            if isinstance(message, _Call) and message.done.set_running_or_notify_cancel():
                message.done.set_exception(EngineDeadError("the engine has ended"))


def _contained(error: BaseException) -> JaxserveError:
    """The error of a request that could not be taken in; an unexpected one is logged."""
    if not isinstance(error, JaxserveError):
        logger.error("a request could not be taken in", exc_info=error)
    return contained(error, "its intake")


def _pass_on(done: Future[Any], answer: Future[Any]) -> None:
    error = answer.exception()
    if error is None:
        done.set_result(answer.result())
    else:
        done.set_exception(error)
