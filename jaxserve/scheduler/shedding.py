"""Load shedding: what is done about requests that cannot be in time, and what that is known by.

Belongs to the scheduler's thread, but for its door, where others learn of refusals without waiting for a step.
"""

from __future__ import annotations

import logging

from jaxserve.scheduler.door import Door, Notice
from jaxserve.scheduler.estimates import OutputLengths
from jaxserve.scheduler.fairness import TokenWork
from jaxserve.scheduler.overload import Overload
from jaxserve.scheduler.request import EngineRequest, Sequence
from jaxserve.scheduler.wait_estimate import WaitEstimate
from jaxserve.scheduler.waiting import WaitingQueue
from jaxserve.types import ServiceClass

logger = logging.getLogger(__name__)


class LoadShedding:
    """Watches who comes, starts and waits, and begins and ends overloads.

    Attributes:
        door: refuses requests in an overload, for whoever brings them from another thread.
        overload: whether there is one.
        estimate: how long work takes.

    Args:
        ttft_target: seconds to the first token that are aimed at; 0: nothing is shed.
        waiting: the queue.
        work: tells what tokens weigh.
        lengths: output lengths to expect.
    """

    def __init__(self, ttft_target: float, waiting: WaitingQueue, work: TokenWork, lengths: OutputLengths) -> None:
        self.door = Door()
        self.overload = Overload(ttft_target)
        self.estimate = WaitEstimate()
        self._waiting = waiting
        self._work = work
        self._lengths = lengths
        self._num_refused = 0  # at the door, as far as they are counted

    def came(self, request: EngineRequest) -> None:
        """A request came, by its first sequence."""
        if request.service_class is not ServiceClass.BATCH and not request.of_list:
            self.overload.came(1)

    def started(self, sequence: Sequence, now: float) -> None:
        """A sequence leaves the queue for the first time: what was expected of its wait is compared with it."""
        if sequence.request.parent is not None:
            return
        if not (sequence.batch or sequence.request.of_list):
            self.overload.started()
        self.waited(sequence, now)

    def first_token(self, sequence: Sequence, now: float) -> None:
        """A sequence has its first token."""
        request = sequence.request
        if request.may_be_shed and not (sequence.late or request.parent):
            self.overload.first_token(request.arrival, now)

    def waited(self, sequence: Sequence, now: float) -> None:
        """A request has waited until now, and starts or gives up."""
        if not sequence.late:
            self.estimate.compare(sequence.queued_wait, now - sequence.request.arrival)

    def look(self, now: float) -> None:
        """Begin or end an overload, and tell those at the door; in one, let those wait on who cannot be in time any more."""
        was_on = self.overload.is_on
        refused, self._num_refused = self.door.num_refused - self._num_refused, self.door.num_refused
        self.overload.came(refused)
        waits = self._waiting.has_interactive
        backlog = self.estimate.seconds(self._waiting.interactive_work) if waits else 0.0
        self._waiting.is_shed = self.overload.look(now, waits=waits, backlog=backlog)
        if not self._waiting.is_shed:
            self.door.notice = None
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
        self.door.notice = self._notice()

    def _notice(self) -> Notice:
        waits, others = self._waiting.works_ahead()
        seconds = self.estimate.seconds
        return Notice(
            self.overload.longest_wait,
            {key: seconds(work) for key, work in waits.items()},
            {service_class: seconds(work) for service_class, work in others.items()},
            seconds(self._work.work(1, 0)),
            {service_class: seconds(self._work.work(0, self._lengths.of_class(service_class))) for service_class in others},
        )
