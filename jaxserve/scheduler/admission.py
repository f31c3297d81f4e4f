"""Whether a request may join the queue: bounded by sequences and tokens, and not if it would wait beyond its deadline.

How long it would wait is the token-work before it over the rate at which work was done lately. A request that is refused is told
when to come back: when the queue is expected to be short enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as ListOf

from jaxserve.config.fields import SchedulerConfig
from jaxserve.errors import OverloadedError, QueueFullError
from jaxserve.scheduler.request import EngineRequest
from jaxserve.scheduler.waiting import WaitingQueue

HORIZON = 10.0  # seconds over which the rate is averaged
SHORTEST_WAIT = 1.0  # seconds: nobody is asked back sooner


class QueueBounds:
    """Decides on requests that arrive.

    Args:
        config: the bounds.
        waiting: the queue.
    """

    def __init__(self, config: SchedulerConfig, waiting: WaitingQueue) -> None:
        self._config = config
        self._waiting = waiting
        self._rate = 0.0  # token-work a second while sequences wait; 0 until measured

    def observe(self, work: float, seconds: float) -> None:
        """A step did this much work while sequences waited: as much as the machine can."""
        if seconds <= 0.0:
            return
        share = 1.0 - math.exp(-seconds / HORIZON) if self._rate else 1.0
        self._rate += share * (work / seconds - self._rate)

    def has_room(self, requests: ListOf[EngineRequest]) -> bool:
        """Whether the queue takes so many sequences and tokens more."""
        tokens = sum(len(request.prompt) for request in requests)
        config, waiting = self._config, self._waiting
        if len(waiting) + len(requests) > config.max_waiting:
            return False
        return waiting.num_tokens + tokens <= config.max_waiting_tokens or not len(waiting)  # a queue takes one request at least

    def check(self, requests: ListOf[EngineRequest], now: float) -> None:
        """Raise QueueFullError or OverloadedError, with the seconds to wait, unless the request may join."""
        first = requests[0]
        if not self.has_room(requests):
            config = self._config
            raise QueueFullError(
                f"the waiting queue is full (max_waiting is {config.max_waiting} sequences, "
                f"max_waiting_tokens {config.max_waiting_tokens} tokens)",
                retry_after=self.seconds_to_wait(first),
            )
        wait = self.seconds_to_start(first)
        left = max(first.queue_deadline - now, 0.0)
        if wait > left:
            limit = first.start_limit
            raise OverloadedError(
                f"{limit} leaves {left:.1f} s, but the request would wait about {wait:.1f} s",
                param=limit,
                retry_after=max(wait - left, SHORTEST_WAIT),
            )

    def seconds_to_start(self, request: EngineRequest) -> float:
        """Seconds until a request that arrives now would start; 0 while nothing is known."""
        if not self._rate or not len(self._waiting):
            return 0.0
        return self._waiting.work_ahead(request.tenant, request.service_class) / self._rate

    def seconds_to_wait(self, request: EngineRequest) -> float:
        """Seconds after which a refused request may come back: when half of what is before it now is done."""
        return max(self.seconds_to_start(request) / 2, SHORTEST_WAIT)
