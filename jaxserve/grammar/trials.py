"""Trials of grammars, in a worker process or in this one."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from jaxserve.children import Backoff, BlockingChild
from jaxserve.errors import CancelledRequestError, InternalError, InvalidRequestError, OverloadedError
from jaxserve.grammar.prepare import Form, Prepared, prepare
from jaxserve.grammar.vocabulary import Vocabulary
from jaxserve.grammar.worker import (
    Begun,
    Died,
    Failed,
    Message,
    OutOfMemory,
    Passed,
    Refused,
    WorkerSpec,
)

logger = logging.getLogger(__name__)

MODULE = "jaxserve.grammar.worker"
START_SECONDS = 60.0  # to load the vocabulary
WALL_SECONDS = 30.0  # for a job that gets hardly any CPU time
POLL_SECONDS = 0.1  # between two looks whether a job is still wanted

_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}  # a process that forks must have one thread
_MESSAGES: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Trial(NamedTuple):
    """A grammar that passed. `growth`: bytes of memory that it took, as far as that is known."""

    prepared: Prepared
    growth: int


class Trials(Protocol):
    """Prepares grammars. Used by one thread."""

    def start(self) -> None:
        """Start what they need, to save the first one the time."""
        ...

    def run(self, form: Form, is_wanted: Callable[[], bool]) -> Trial:
        """Prepare a grammar and compile it on trial.

        Raises InvalidRequestError naming the field and the limit, OverloadedError or CancelledRequestError if it is not wanted.
        """
        ...

    def close(self) -> None: ...


class LocalTrials:
    """Trials in this process, without limits: for grammars that are trusted."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary

    def start(self) -> None:
        pass

    def run(self, form: Form, is_wanted: Callable[[], bool]) -> Trial:
        return Trial(prepare(form, self._vocabulary())[0], 0)

    def close(self) -> None:
        pass


class WorkerTrials:
    """Trials in a worker process, which is started by `start` or the first one, and again when it ends."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._child: BlockingChild | None = None
        self._backoff = Backoff()
        self._not_before = 0.0

    def start(self) -> None:
        with contextlib.suppress(OverloadedError):
            self._started()

    def run(self, form: Form, is_wanted: Callable[[], bool]) -> Trial:
        try:
            content = msgspec.msgpack.encode(form)
        except (UnicodeEncodeError, OverflowError) as error:
            raise InvalidRequestError(f"{form.param} cannot be sent: {error}", param=form.param) from error
        child = self._started()
        child.send(content)
        message = self._await(child, is_wanted)
        if isinstance(message, Passed):
            return Trial(message.prepared, message.growth)
        if isinstance(message, Refused):
            raise InvalidRequestError(message.message, param=message.param)
        if isinstance(message, Failed):
            raise InternalError(f"{form.param}: preparing the grammar failed: {message.error}", param=form.param)
        assert isinstance(message, OutOfMemory | Died)
        number = signal.SIGABRT if isinstance(message, OutOfMemory) else message.signal
        reason = self._reason(number)
        if reason is None:
            raise InternalError(f"{form.param}: the grammar worker ended by signal {number}", param=form.param)
        raise InvalidRequestError(f"{form.param}: {reason}", param=form.param)

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _started(self) -> BlockingChild:
        """The worker; waits until it is ready. Raises OverloadedError if it cannot be started."""
        if self._child is not None:
            return self._child
        left = self._not_before - time.monotonic()
        if left > 0:
            raise _no_worker(left)
        began = time.monotonic()
        try:
            child = BlockingChild(MODULE, msgspec.msgpack.encode(self._spec), environment=_ENVIRONMENT)
        except OSError as error:
            logger.error("the grammar worker process cannot be started: %s", error)
            self._failed(began)
            raise _no_worker(self._backoff.seconds) from error
        if not child.has_message(START_SECONDS) or child.receive() is None:
            child.kill()
            logger.error("the grammar worker process ended, or was not ready after %g s", START_SECONDS)
            self._failed(began)
            raise _no_worker(self._backoff.seconds)
        self._child = child
        return child

    def _await(self, child: BlockingChild, is_wanted: Callable[[], bool]) -> Message:
        """The outcome of the job that was sent."""
        deadline, begun, cancelled = time.monotonic() + WALL_SECONDS, False, False
        while True:
            if not child.has_message(POLL_SECONDS):
                if time.monotonic() > deadline:
                    self.close()
                    raise OverloadedError(f"the grammar was not compiled after {WALL_SECONDS:g} s", retry_after=1.0)
                if begun and not cancelled and not is_wanted():
                    cancelled = True
                    child.process.send_signal(signal.SIGUSR1)  # answered by one Died
                continue
            content = child.receive()
            if content is None:
                self.close()
                raise InternalError("the grammar worker process ended")
            message = _MESSAGES.decode(content)
            if isinstance(message, Died):
                if cancelled:
                    raise CancelledRequestError("the grammar is not wanted any more")
                if begun:
                    return message
                # else an idle runner ended: the next one reads the job
            elif isinstance(message, Begun):
                begun = True
            elif not cancelled:
                return message

    def _reason(self, number: int) -> str | None:
        """Which limit kills a runner by a signal."""
        return {
            signal.SIGPROF: f"compiling takes more than {self._spec.cpu_seconds:g} s of CPU time",
            signal.SIGABRT: f"compiling needs more than {self._spec.memory_bytes // 2**20} MiB of memory",
            signal.SIGKILL: "compiling needs more memory than there is",
            signal.SIGSEGV: "it is too large, or too deep, to be compiled",
        }.get(signal.Signals(number) if number else signal.SIGCONT)

    def _failed(self, began: float) -> None:
        now = time.monotonic()
        self._backoff.failed(now - began)
        self._not_before = now + self._backoff.seconds


def _no_worker(seconds: float) -> OverloadedError:
    return OverloadedError("the process that compiles grammars does not start", retry_after=max(seconds, 1.0))
