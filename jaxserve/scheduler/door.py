"""Refuses requests while the engine's thread computes a step: in an overload nobody waits for the end of one to be sent away.

The scheduler hangs out a notice at every step of an overload; who hands requests to the engine's thread reads it first. A notice
is never changed, so the two threads need no lock; what came since it was hung out is added by whoever reads it. What the notice
lets pass the scheduler still judges, and more leniently: it knows better, but its answer comes after a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from jaxserve.errors import OverloadedError
from jaxserve.scheduler.request import EngineRequest
from jaxserve.types import ServiceClass


@dataclass(frozen=True, slots=True)
class Notice:
    """What an overload means for requests that come now.

    Attributes:
        longest_wait: seconds that a request may have to wait.
        waits: seconds that a request of a class and tenant would, for tenants that have requests in the queue.
        others: the same by class for all other tenants.
        seconds_a_token: that a token of a prompt takes.
        seconds_an_output: that an output of a class takes.
    """

    longest_wait: float
    waits: Mapping[tuple[ServiceClass, str], float]
    others: Mapping[ServiceClass, float]
    seconds_a_token: float
    seconds_an_output: Mapping[ServiceClass, float]


@dataclass(slots=True)
class Door:
    """Between those who bring requests, one thread, and the scheduler's.

    Attributes:
        notice: written by the scheduler's thread; None while there is no overload.
        num_refused: interactive requests refused, counted by the other one.
    """

    notice: Notice | None = None
    num_refused: int = 0
    _read: Notice | None = field(default=None, repr=False)
    _since: float = 0.0  # seconds of work let in since that notice was hung out

    def refusal(self, requests: ListOf[EngineRequest]) -> OverloadedError | None:
        """Why the sequences of one request cannot join; None if they may try."""
        notice, first = self.notice, requests[0]
        if notice is not self._read:
            self._read, self._since = notice, 0.0
        if notice is None or not first.may_be_shed:
            return None
        key = (first.service_class, first.tenant)
        wait = notice.waits.get(key, notice.others[first.service_class]) + self._since
        if wait > notice.longest_wait:
            self.num_refused += 1
            return too_late(wait, notice.longest_wait)
        self._since += notice.seconds_a_token * len(first.prompt) + len(requests) * notice.seconds_an_output[first.service_class]
        return None


def too_late(wait: float, longest_wait: float) -> OverloadedError:
    """The refusal of a request that would not be in time."""
    return OverloadedError(
        f"the server is overloaded: the request would wait about {wait:.1f} s for its first step, more than the "
        f"{longest_wait:.1f} s that ttft_target_ms leaves (with a queue_timeout of its own it may wait that long)",
        retry_after=max(wait, 1.0),
    )
