"""How many retries there may be: a storm of them keeps down a server that has just come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from jaxserve.client.checks import finite


class RetryBudget:
    """A bucket of retries that all requests of a client share, or of several clients that are given the same one.

    Answers fill it by a share each, as in gRPC (gRFC A6), and time does slowly, as in Finagle, for clients with few requests. In
    any time there are at most `capacity + per_answer * answers + per_second * seconds` retries: while nothing is answered,
    requests go out once each. Threads may share it.

    Args:
        capacity: retries that it holds, and begins with.
        per_answer: what an answer that is no refusal adds.
        per_second: what a second adds.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        capacity: float = 100.0,
        per_answer: float = 0.1,
        per_second: float = 1.0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity = finite("capacity", capacity, at_least=0.0)
        self._per_answer = finite("per_answer", per_answer, at_least=0.0)
        self._per_second = finite("per_second", per_second, at_least=0.0)
        self._clock = clock
        self._level = self._capacity
        self._time = clock()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Whether there may be one more; then it is taken."""
        with self._lock:
            self._flow()
            if self._level < 1.0:
                return False
            self._level -= 1.0
            return True

    def answered(self) -> None:
        """A request was answered by something else than a refusal."""
        with self._lock:
            self._flow()
            self._level = min(self._level + self._per_answer, self._capacity)

    def _flow(self) -> None:
        now = self._clock()
        self._level = min(self._level + max(now - self._time, 0.0) * self._per_second, self._capacity)
        self._time = now
