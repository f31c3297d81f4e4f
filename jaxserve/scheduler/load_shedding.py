"""What is done where more requests come than can be served: who may still join, who is refused, and who waits on.

`Overload`: whether interactive requests come faster than they are started, and who is in time then.

A crowd that comes at once is served in its order, and as many clients as like may each ask again when they were answered. But a
queue that keeps growing makes everybody late who is behind it, however fast the machine is, and all its work is for requests that
missed their time to first token. So where in two seconds a fourth more requests come than are started, in the latter of them as
many at least, while what waits would take twice as long as the target:

- a request joins only if it would start soon enough to be in time, else it is refused at once (one with a `queue_timeout` of its
  own decides for itself how long it waits); how soon that is, first tokens tell: while more than a tenth of them are late the
  wait that is allowed gets shorter, else longer, up to half of the target;
- who has waited for so long that its first token would be late waits on behind those that can still be in time, and leaves them
  one of eight rows.

This ends when nobody waits, or when for three seconds requests come no faster than they are started. Both are counted, so no
estimate can make it last. (As Facebook's controlled delay and adaptive LIFO: Maurer, Fail at Scale, ACM Queue 13(8), 2015. The
wait that is allowed follows a quantile by stochastic approximation: Robbins and Monro, 1951.)

`AdmissionGate`: refuses requests while the engine's thread computes a step: in an overload nobody waits for the end of one to be
sent away.

The scheduler hangs out a notice at every step of an overload; who hands requests to the engine's thread reads it first. A notice
is never changed, so the two threads need no lock; what came since it was hung out is added by whoever reads it. What the notice
lets pass the scheduler still judges, and more leniently: it knows better, but its answer comes after a step.

`LoadShedding` counts who comes, starts and waits, and acts on it. It belongs to the scheduler's thread, but for its gate, where
others learn of refusals without waiting for a step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from jaxserve.errors import OverloadedError
from jaxserve.scheduler.estimates import OutputLengths, WaitEstimate
from jaxserve.scheduler.fairness import TokenWork
from jaxserve.scheduler.promises import Promises
from jaxserve.scheduler.request import EngineRequest, Sequence
from jaxserve.scheduler.waiting import WaitingQueue
from jaxserve.types import ServiceClass

logger = logging.getLogger(__name__)

BEGINS, ENDS = 1.25, 1.1  # times as many requests come as are started
TO_END = 3  # intervals in a row of that: one lull is not the end of an overload
SHORTEST, LONGEST = 1.0, 10.0  # seconds of an interval,
BACKLOG = 2.0  # times the target: less is what a neighbour's burst leaves behind, and is made up for
FEWEST = 8  # requests that come in one, if they come within the longest
MOST, FIRST, LEAST = 0.5, 0.2, 0.05  # of the target that may be waited in the queue: the prompt must be computed too
LATE_SHARE = 0.1  # of those let in that may be late
GAIN = 0.05  # of the target by which one of them changes the wait that is allowed, at most


class Overload:
    """Counts requests that come and start, in intervals of a second or more.

    Attributes:
        is_on: whether there is an overload now.
        num_begun: times that one began.
        longest_wait: seconds in the queue with which a request is in time.

    Args:
        ttft_target: seconds to the first token that are aimed at; 0: there are no overloads.
    """

    def __init__(self, ttft_target: float) -> None:
        self.is_on = False
        self.num_begun = 0
        self.longest_wait = FIRST * ttft_target
        self._target = ttft_target
        self._on_since = math.inf  # when the overload began
        self._began: float | None = None  # the interval; None while nobody waits
        self._came = 0
        self._started = 0
        self._before: tuple[int, int] | None = None  # what came and was started in the interval before
        self._quiet = 0  # intervals in a row, in an overload, in which hardly more came

    def is_late(self, waited: float) -> bool:
        """Whether who waited so long, or will, cannot be in time any more."""
        return waited > (self.longest_wait + self._target) / 2

    def came(self, count: int) -> None:
        self._came += count

    def started(self) -> None:
        self._started += 1

    def first_token(self, arrival: float, now: float) -> None:
        """A request that did not wait on as a late one has its first token."""
        if self.is_on and arrival >= self._on_since:
            change = LATE_SHARE if now - arrival <= self._target else LATE_SHARE - 1.0
            wait = self.longest_wait + GAIN * change * self._target
            self.longest_wait = min(max(wait, LEAST * self._target), MOST * self._target)

    def look(self, now: float, *, waits: bool, backlog: float) -> bool:
        """Whether there is an overload now; `waits`: interactive requests wait, for `backlog` seconds a new one would."""
        if not self._target or not waits:
            self.is_on, self._began, self._before = False, None, None
            return False
        if self._began is None or now < self._began:
            self._begin_interval(now)
            return self.is_on
        if now - self._began < (SHORTEST if self._came >= FEWEST else LONGEST):
            return self.is_on
        if self.is_on:
            self._quiet = self._quiet + 1 if self._came <= ENDS * self._started else 0
            self.is_on = self._quiet < TO_END
        elif self._grows() and backlog > BACKLOG * self._target:
            self.is_on, self._quiet, self._on_since = True, 0, now
            self.num_begun += 1
        self._before = self._came, self._started
        self._begin_interval(now)
        return self.is_on

    def _grows(self) -> bool:
        """Whether more come than are started, in this interval and the one before: of a crowd at once none come in the latter."""
        if self._before is None:
            return False
        came, started = self._came + self._before[0], self._started + self._before[1]
        return self._came >= max(FEWEST, self._started) and came >= BEGINS * started

    def _begin_interval(self, now: float) -> None:
        self._began, self._came, self._started = now, 0, 0


@dataclass(frozen=True, slots=True)
class OverloadNotice:
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
class AdmissionGate:
    """Between those who bring requests, one thread, and the scheduler's.

    Attributes:
        notice: written by the scheduler's thread; None while there is no overload.
        num_refused: interactive requests refused, counted by the other one.
    """

    notice: OverloadNotice | None = None
    num_refused: int = 0
    _read: OverloadNotice | None = field(default=None, repr=False)
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
    return OverloadedError(
        f"the server is overloaded: the request would wait about {wait:.1f} s for its first step, more than the "
        f"{longest_wait:.1f} s that ttft_target_ms leaves (with a queue_timeout of its own it may wait that long)",
        retry_after=max(wait, 1.0),
    )


class LoadShedding:
    """Watches who comes, starts and waits, and begins and ends overloads.

    Attributes:
        gate: refuses requests in an overload, for whoever brings them from another thread.
        promises: counts those that were not kept.

    Args:
        ttft_target: seconds to the first token that are aimed at; 0: nothing is shed.
        itl_target: seconds between tokens that are promised; 0: none are.
    """

    def __init__(
        self, ttft_target: float, itl_target: float, waiting: WaitingQueue, work: TokenWork, lengths: OutputLengths
    ) -> None:
        self.gate = AdmissionGate()
        self.promises = Promises(ttft_target, itl_target)
        self.overload = Overload(ttft_target)
        self.estimate = WaitEstimate()
        self._waiting = waiting
        self._work = work
        self._lengths = lengths
        self._num_refused = 0  # at the gate, as far as they are counted

    def came(self, request: EngineRequest) -> None:
        if request.service_class is not ServiceClass.BATCH and not (request.of_list or request.resumed):
            self.overload.came(1)

    def started(self, sequence: Sequence, now: float) -> None:
        """A sequence leaves the queue for the first time: what was expected of its wait is compared with it."""
        if sequence.request.parent is not None or sequence.request.resumed:
            return
        if not (sequence.batch or sequence.request.of_list):
            self.overload.started()
        self.waited(sequence, now)

    def first_token(self, sequence: Sequence, now: float) -> None:
        request, sequence.first_token = sequence.request, now
        if request.parent is None:
            self.promises.first_token(request, now)
        if request.may_be_shed and not (sequence.late or request.parent):
            self.overload.first_token(request.arrival, now)

    def waited(self, sequence: Sequence, now: float) -> None:
        if not (sequence.late or sequence.request.resumed):  # else its wait began elsewhere
            self.estimate.compare(sequence.queued_wait, now - sequence.request.arrival)

    def look(self, now: float) -> None:
        """Begin or end an overload, and tell those at the gate; in one, let those wait on who cannot be in time any more."""
        was_on = self.overload.is_on
        refused, self._num_refused = self.gate.num_refused - self._num_refused, self.gate.num_refused
        self.overload.came(refused)
        self.promises.refused_at_gate(refused, now)
        waits = self._waiting.has_interactive
        backlog = self.estimate.seconds(self._waiting.interactive_work) if waits else 0.0
        self._waiting.is_shed = self.overload.look(now, waits=waits, backlog=backlog)
        if not self._waiting.is_shed:
            self.gate.notice = None
            if was_on:
                logger.warning("the overload is over")
            return
        if not was_on:
            logger.warning(
                "overload: requests come faster than they are started, and %d wait; those that would wait for more than %.1f s "
                "are refused",
                len(self._waiting),
                self.overload.longest_wait,
            )
        self._waiting.yield_late(self.overload.is_late, now)
        self.gate.notice = self._notice()

    def _notice(self) -> OverloadNotice:
        waits, others = self._waiting.works_ahead()
        seconds = self.estimate.seconds
        return OverloadNotice(
            self.overload.longest_wait,
            {key: seconds(work) for key, work in waits.items()},
            {service_class: seconds(work) for service_class, work in others.items()},
            seconds(self._work.work(1, 0)),
            {service_class: seconds(self._work.work(0, self._lengths.of_class(service_class))) for service_class in others},
        )
