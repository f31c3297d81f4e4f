"""Failures that belong to one sequence: it ends with an error, and the step goes on without it."""

from __future__ import annotations

import logging
from types import TracebackType

from jaxserve.errors import InternalError, JaxserveError, contained, is_containable
from jaxserve.scheduler.request import Sequence

logger = logging.getLogger(__name__)

Failure = tuple[Sequence, JaxserveError]


class Containment:
    """Collects the sequences that failed until the scheduler ends them."""

    def __init__(self) -> None:
        self._failures: list[Failure] = []

    @property
    def pending(self) -> bool:
        return bool(self._failures)

    def of(self, sequence: Sequence, phase: str) -> _Contained:
        """A context that ends only this sequence if it raises. What it changed for others must be consistent when it does."""
        return _Contained(self, sequence, phase)

    def fail(self, sequence: Sequence, error: BaseException, phase: str) -> JaxserveError:
        """Note that a sequence failed, and log why. Returns the error that its client gets."""
        if not isinstance(error, JaxserveError) or isinstance(error, InternalError):
            logger.error("request %s failed in %s", sequence.request.id, phase, exc_info=error)
        reason = contained(error, phase)
        self._failures.append((sequence, reason))
        return reason

    def take(self) -> list[Failure]:
        """The failures since the last call."""
        failures, self._failures = self._failures, []
        return failures


class _Contained:
    __slots__ = ("_containment", "_phase", "_sequence")

    def __init__(self, containment: Containment, sequence: Sequence, phase: str) -> None:
        self._containment, self._sequence, self._phase = containment, sequence, phase

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if error is None or not is_containable(error):
            return False
        self._containment.fail(self._sequence, error, self._phase)
        return True
