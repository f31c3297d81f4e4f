"""Times by which sequences must have started, or ended, and what is said of those that did not."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

from jaxserve.errors import DeadlineError
from jaxserve.scheduler.request import EngineRequest, Sequence, Status

SMALLEST = 64  # entries below which finished sequences are not looked for


class Deadlines:
    """Unfinished sequences by a clock time. Finished ones are dropped when the heap has doubled since the last time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._counter = itertools.count()
        self._clean_at = SMALLEST

    def add(self, time: float, sequence: Sequence) -> None:
        """The sequence is due at this time; at infinity it never is."""
        if time == math.inf:
            return
        heapq.heappush(self._heap, (time, next(self._counter), sequence))
        if len(self._heap) >= self._clean_at:
            self._heap = [entry for entry in self._heap if entry[2].status is not Status.FINISHED]
            heapq.heapify(self._heap)
            self._clean_at = max(SMALLEST, 2 * len(self._heap))

    def due(self, now: float) -> Iterator[Sequence]:
        """Unfinished sequences whose time has come; each is given once."""
        while self._heap and self._heap[0][0] <= now:
            sequence = heapq.heappop(self._heap)[2]
            if sequence.status is not Status.FINISHED:
                yield sequence


def late_start(request: EngineRequest, now: float, retry_after: float | None = None) -> DeadlineError:
    """The request has not started in time. Names what its time comes from."""
    name, given = request.start_limit, min(request.queue_deadline, request.deadline) - request.arrival
    message = f"{name} is {given:.4g} s: the request waited {now - request.arrival:.1f} s and did not start in time"
    return DeadlineError(message, param=name, retry_after=retry_after)


def late_end(request: EngineRequest, now: float) -> DeadlineError:
    """The request has not ended in time."""
    given, taken = request.deadline - request.arrival, now - request.arrival
    return DeadlineError(f"timeout is {given:.4g} s: the request took {taken:.1f} s and did not end in time", param="timeout")
