"""Who gives its pages back when they run out, and whether they are computed again or swapped.

Only sequences of less precedence than the one in need (a lower class, or a later admission) may be taken: the first of all always
runs on, so something always ends. Among those: tenants beyond their quota first, then the lowest class, then the sequence
that loses the fewest computed tokens for each page gained, then the youngest (`policy.cheapest`).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from jaxserve.cache.sequence_pages import PrefixMatch
from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import Clock
from jaxserve.config.policies import Policies
from jaxserve.scheduler.choice import StepChoice
from jaxserve.scheduler.policy import Policy, Victim
from jaxserve.scheduler.request import RANKS, Sequence, Status
from jaxserve.scheduler.running import RunningSet
from jaxserve.scheduler.step_budget import StepBudget
from jaxserve.scheduler.waiting import WaitingQueue
from jaxserve.types import ServiceClass

BATCH_RANK = RANKS[ServiceClass.BATCH]
RECENT = 256  # preemptions that are kept

logger = logging.getLogger(__name__)


class Reason(StrEnum):
    """Why a sequence gave its pages back."""

    PAGES = "pages"  # one of more precedence that runs needed them
    OWN_GROWTH = "own_growth"  # it needed more itself, and all that run go before it
    TENANT_CAP = "tenant_cap"  # its tenant has as many as it may, and one of its sequences needed more
    ADMISSION = "admission"  # it is batch, and an interactive one that waits needed its pages or its slot


@dataclass(frozen=True, slots=True)
class Preemption:
    """One sequence gave its pages back.

    Attributes:
        service_class: that it was scheduled in.
        time: clock time, seconds.
        tokens_lost: computed tokens that must be computed again; 0 if they were swapped.
        swapped: whether its pages wait in the swap space.
        needed_by: the sequence that its pages are for.
    """

    id: str
    tenant: str
    service_class: ServiceClass
    time: float
    tokens_lost: int
    pages_gained: int
    swapped: bool
    reason: Reason
    needed_by: str


def log_preemption(event: Preemption) -> None:
    told = event.id, event.reason, event.needed_by, event.tokens_lost, event.pages_gained
    logger.info("preempted %s (%s, for %s): %d tokens lost, %d pages gained", *told)


class Preempter:
    """Takes running sequences' pages and slots for others.

    Attributes:
        num_preemptions: sequences preempted.
        num_lost_tokens: computed tokens they lost; the prefix cache may still hold some.
        by_reason: how many were for each reason.
        recent: the latest of them.

    Args:
        swap: where pages can wait; None if there is no such place.
        step_budget: what computing again would cost.
        high_watermark: pages that are free after a preemption.
        policy: chooses among victims, and between swapping and computing again.
    """

    def __init__(
        self,
        clock: Clock,
        policies: Policies,
        running: RunningSet,
        waiting: WaitingQueue,
        swap: SwapSpace | None,
        step_budget: StepBudget,
        high_watermark: int,
        estimate: Callable[[Sequence], float],
        tell: Callable[[Preemption], None],
        policy: Policy,
    ) -> None:
        self.num_preemptions = 0
        self.num_lost_tokens = 0
        self.by_reason: Counter[Reason] = Counter()
        self.recent: deque[Preemption] = deque(maxlen=RECENT)
        self._clock = clock
        self._policies = policies
        self._running = running
        self._cache = running.cache
        self._waiting = waiting
        self._swap = swap
        self._step_budget = step_budget
        self._high_watermark = high_watermark
        self._estimate = estimate
        self._tell = tell
        self._policy = policy

    def within_cap(self, sequence: Sequence, num_tokens: int) -> bool:
        cap = self._policies.of_tenant(sequence.request.tenant).kv_cap
        if cap == 1.0:
            return True
        more = self._cache.pages_for(num_tokens) - len(sequence.pages.pages)
        return self._cache.tenant_pages(sequence.request.tenant) + more <= cap * self._cache.num_usable

    def make_room(self, choice: StepChoice, sequence: Sequence, num_tokens: int) -> bool:
        """Get pages for a running sequence from those of less precedence; False if it was preempted itself.

        A preemption does not stop at the page that was missing but at the high watermark: with one page at a time, nearly every
        step would preempt and compute again. Where its tenant's cap is in the way, only the tenant's own sequences help. Settled
        rows of the step stay: one that they are in the way of is left out of it.
        """
        precedence, tenant = sequence.precedence, sequence.request.tenant
        capped = not self.within_cap(sequence, num_tokens)
        behind = [
            one for one in self._running.sequences if one.precedence > precedence and (not capped or one.request.tenant == tenant)
        ]
        candidates = [one for one in behind if one not in choice.settled]
        while candidates:
            if self.within_cap(sequence, num_tokens) and self._cache.can_grow(
                sequence.pages, num_tokens, spare=0 if capped else self._high_watermark
            ):
                break
            self._preempt_cheapest(choice, candidates, Reason.TENANT_CAP if capped else Reason.PAGES, sequence)
        if self.within_cap(sequence, num_tokens) and self._running.grow(sequence, num_tokens):
            return True
        if not choice.settled.isdisjoint(behind):
            return False
        if len(self._running) == 1:  # only pins can be in its way
            self._cache.unpin_all()
            if self._running.grow(sequence, num_tokens):
                return True
        self._preempt(choice, sequence, Reason.TENANT_CAP if capped else Reason.OWN_GROWTH, sequence)
        return False

    def make_way(self, choice: StepChoice, sequence: Sequence, match: PrefixMatch) -> None:
        """Preempt batch sequences so that a waiting one can start in the next step; none if all of them would not do.

        Those that were preempted too often count as interactive and stay. Settled rows of the step stay too.
        """
        candidates = [one for one in self._running.sequences if one.precedence[0] == BATCH_RANK and one not in choice.settled]
        count = len(sequence.tokens)
        gain = self._cache.exclusive_pages(*(one.pages for one in candidates))
        if not candidates or not self._cache.fits(match, count, spare=-gain):
            return
        while candidates:
            if self._running.rows.num_free and self._cache.fits(match, count, spare=self._high_watermark):
                break
            self._preempt_cheapest(choice, candidates, Reason.ADMISSION, sequence)

    def _preempt_cheapest(self, choice: StepChoice, candidates: list[Sequence], reason: Reason, needed_by: Sequence) -> None:
        victim = min(candidates, key=self._cost)
        candidates.remove(victim)
        self._preempt(choice, victim, reason, needed_by)

    def _cost(self, sequence: Sequence) -> tuple[float, ...]:
        """The smallest is preempted."""
        gained = self._cache.exclusive_pages(sequence.pages)
        share = self._policies.of_tenant(sequence.request.tenant).kv_share
        over_quota = self._cache.tenant_pages(sequence.request.tenant) > share * self._cache.num_usable
        return self._policy.victim(Victim(sequence, gained, over_quota))

    def _preempt(self, choice: StepChoice, sequence: Sequence, reason: Reason, needed_by: Sequence) -> None:
        """Take the sequence's pages; it goes on later, from the front of its tenant's queue."""
        choice.preempted = True
        choice.tokens.left += choice.chosen.pop(sequence, 0)
        request, lost = sequence.request, sequence.num_computed
        gained = self._cache.exclusive_pages(sequence.pages)
        swapped = self._cheaper_to_swap(sequence) and self._running.swap_out(sequence)
        if swapped:
            lost = 0
        self._running.stop(sequence)
        sequence.status = Status.WAITING
        sequence.num_preemptions += 1
        sequence.queued_work = self._estimate(sequence)
        self._waiting.put_back([sequence])
        self._waiting.served(sequence.service_class, self._clock.now())  # it had its turn: no aging takes the slot back at once
        self.num_preemptions += 1
        self.num_lost_tokens += lost
        self.by_reason[reason] += 1
        now, service_class, other = self._clock.now(), sequence.service_class, needed_by.request.id
        event = Preemption(request.id, request.tenant, service_class, now, lost, gained, swapped, reason, other)
        self.recent.append(event)
        self._tell(event)

    def _cheaper_to_swap(self, sequence: Sequence) -> bool:
        """The crossover: pages go out and come back at the link's speed, or their tokens are computed again at prefill's.

        Both grow with the tokens, so one machine and model nearly always lie on one side: swapping wins where 2 x page bytes /
        link bandwidth < page size x seconds of a prefill token. Until a prefill was measured, nothing is swapped.
        """
        if self._swap is None or sequence.num_drafts:  # nobody knows yet how much there is of it
            return False
        pages = len(self._running.computed_pages(sequence))
        return self._policy.swap(2 * self._swap.seconds(pages), self._step_budget.prefill_seconds(sequence.num_computed))
