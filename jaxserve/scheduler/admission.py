"""Whether a request may join the queue: bounded by sequences and tokens, and not if it would wait beyond its deadline.

How long it would wait is the token-work before it over the rate at which work was done lately. In an overload it may wait no
longer than the time to first token leaves that is aimed at. A request that is refused is told when to come back: when the queue
is expected to be short enough.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from collections.abc import Sequence as ListOf

from jaxserve.config.fields import SchedulerConfig
from jaxserve.errors import DeadlineError, OverloadedError, QueueFullError
from jaxserve.scheduler.load_shedding import LoadShedding, too_late
from jaxserve.scheduler.request import EngineRequest, Sequence, Status
from jaxserve.scheduler.waiting import WaitingQueue
from jaxserve.types import ServiceClass

SMALLEST = 64  # entries below which finished sequences are not looked for


class Deadlines:
    """Unfinished sequences by a clock time. Finished ones are dropped when the heap has doubled since the last time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._counter = itertools.count()
        self._clean_at = SMALLEST

    def add(self, time: float, sequence: Sequence) -> None:
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
    name, given = request.start_limit, min(request.queue_deadline, request.deadline) - request.arrival
    message = f"{name} is {given:.4g} s: the request waited {now - request.arrival:.1f} s and did not start in time"
    return DeadlineError(message, param=name, retry_after=retry_after)


def late_end(request: EngineRequest, now: float) -> DeadlineError:
    given, taken = request.deadline - request.arrival, now - request.arrival
    return DeadlineError(f"timeout is {given:.4g} s: the request took {taken:.1f} s and did not end in time", param="timeout")


SHORTEST_WAIT = 1.0  # seconds: nobody is asked back sooner


class QueueBounds:
    """Decides on requests that arrive."""

    def __init__(self, config: SchedulerConfig, waiting: WaitingQueue, shedding: LoadShedding) -> None:
        self._config = config
        self._waiting = waiting
        self._estimate = shedding.estimate
        self._overload = shedding.overload
        self._promises = shedding.promises

    def has_room(self, requests: ListOf[EngineRequest]) -> bool:
        tokens = sum(len(request.prompt) + len(request.output) for request in requests)
        config, waiting = self._config, self._waiting
        if len(waiting) + len(requests) > config.max_waiting:
            return False
        return waiting.num_tokens + tokens <= config.max_waiting_tokens or not len(waiting)  # a queue takes one request at least

    def check(self, requests: ListOf[EngineRequest], now: float) -> None:
        """Raise QueueFullError or OverloadedError, with the seconds to wait, unless the request may join."""
        error = self._refusal(requests, now)
        if error is not None:
            self._promises.refused(requests[0], now)
            raise error

    def _refusal(self, requests: ListOf[EngineRequest], now: float) -> QueueFullError | OverloadedError | None:
        first = requests[0]
        if not self.has_room(requests):
            config = self._config
            return QueueFullError(
                f"the waiting queue is full (max_waiting is {config.max_waiting} sequences, "
                f"max_waiting_tokens {config.max_waiting_tokens} tokens)",
                retry_after=self.seconds_to_wait(first),
            )
        wait = self.seconds_to_start(first)
        left = max(first.queue_deadline - now, 0.0)
        if wait > left:
            limit = first.start_limit
            return OverloadedError(
                f"{limit} leaves {left:.1f} s, but the request would wait about {wait:.1f} s",
                param=limit,
                retry_after=max(wait - left, SHORTEST_WAIT),
            )
        if self.yields(first) and first.may_be_shed and self._overload.is_late(wait):
            return too_late(wait, self._overload.longest_wait)
        return None

    def yields(self, request: EngineRequest) -> bool:
        """Whether there is an overload in which an interactive request that arrives now would wait for too long."""
        if not self._overload.is_on or request.service_class is ServiceClass.BATCH:
            return False
        return self.seconds_to_start(request) > self._overload.longest_wait

    def seconds_to_start(self, request: EngineRequest) -> float:
        """Seconds until a request that arrives now would start; 0 while nothing is known."""
        return self._estimate.seconds(self._work_ahead(request))

    def uncorrected(self, request: EngineRequest) -> float:
        """The same, as it was worked out before it was compared with what happened to others."""
        return self._estimate.uncorrected(self._work_ahead(request))

    def seconds_to_wait(self, request: EngineRequest) -> float:
        """Seconds after which a refused request may come back: when half of what is before it now is done."""
        return max(self.seconds_to_start(request) / 2, SHORTEST_WAIT)

    def _work_ahead(self, request: EngineRequest) -> float:
        return self._waiting.work_ahead(request.tenant, request.service_class) if len(self._waiting) else 0.0
