"""How a scheduler stands, for those who watch it. What it costs grows with what runs and with the tenants that wait."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import islice
from operator import attrgetter

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.swap import SwapSpace
from jaxserve.config.fields import SchedulerConfig
from jaxserve.metrics.frame import MAX_QUEUES, MAX_ROWS, PaceNow, PagesNow, PreemptedRow, QueueRow, RunningRow, Snapshot
from jaxserve.scheduler.choice import StepChoice
from jaxserve.scheduler.preemption import Preempter
from jaxserve.scheduler.promises import Promises
from jaxserve.scheduler.request import Sequence
from jaxserve.scheduler.running import RunningSet
from jaxserve.scheduler.step_budget import StepBudget
from jaxserve.scheduler.waiting import WaitingQueue


class SchedulerView:
    """Only reads; the thread that owns the scheduler asks it.

    Args:
        in_flight: steps by number.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        swap: SwapSpace | None,
        running: RunningSet,
        waiting: WaitingQueue,
        preempter: Preempter,
        step_budget: StepBudget,
        promises: Promises,
        in_flight: Mapping[int, StepChoice],
    ) -> None:
        self._config = config
        self._cache = cache
        self._swap = swap
        self._running = running
        self._waiting = waiting
        self._preempter = preempter
        self._step_budget = step_budget
        self._promises = promises
        self._in_flight = in_flight

    def prefill_tokens(self, step: int) -> int:
        """Tokens of a step in flight that are of rows which compute their prompts."""
        return self._in_flight[step].prefill_tokens

    def snapshot(self, now: float) -> Snapshot:
        running, waiting = self._running, self._waiting
        rows = [self._row(sequence) for sequence in islice(running.sequences, MAX_ROWS)]
        queues = [
            QueueRow(service_class.value, tenant, len(queue))
            for service_class, by_tenant in waiting.queues.items()
            for tenant, queue in heapq.nlargest(MAX_QUEUES, by_tenant.items(), key=lambda one: len(one[1]))
        ]
        return Snapshot(
            running=len(running),
            waiting=len(waiting),
            rows=rows,
            more_rows=len(running) - len(rows),
            queues=queues,
            more_waiting=len(waiting) - sum(map(attrgetter("waiting"), queues)),
            pages=self._pages(),
            prefix_queries=self._cache.queried_tokens,
            prefix_hits=self._cache.hit_tokens,
            preemptions={reason.value: count for reason, count in self._preempter.by_reason.items()},
            lost_tokens=self._preempter.num_lost_tokens,
            pace=self._pace(now),
        )

    def preempted(self, first: int) -> tuple[int, list[PreemptedRow]]:
        """Preemptions from a number on, as far as they are kept; and the number of the first that is."""
        kept, count = self._preempter.recent, self._preempter.num_preemptions
        first = min(max(first, count - len(kept)), count)
        events = islice(kept, len(kept) - (count - first), None)
        return first, [
            PreemptedRow(
                one.id,
                one.tenant,
                one.service_class.value,
                one.time,
                one.tokens_lost,
                one.pages_gained,
                one.swapped,
                one.reason.value,
                one.needed_by,
            )
            for one in events
        ]

    def _row(self, sequence: Sequence) -> RunningRow:
        request = sequence.request
        return RunningRow(
            request.id,
            sequence.service_class.value,
            request.tenant,
            request.arrival,
            sequence.admitted or request.arrival,
            sequence.num_prompt,
            sequence.num_computed,
            sequence.num_output,
            self._cache.num_held(sequence.pages),
            sequence.num_preemptions,
        )

    def _pages(self) -> PagesNow:
        cache, swap = self._cache, self._swap
        return PagesNow(
            total=cache.num_usable,
            running=cache.num_usable - cache.num_free,
            cached=cache.num_cached,
            free=cache.num_free - cache.num_cached,
            pinned=cache.num_pinned,
            swapped=swap.num_taken if swap is not None else 0,
            swap_total=swap.num_taken + swap.num_free if swap is not None else 0,
            size=cache.page_size,
        )

    def _pace(self, now: float) -> PaceNow:
        due, broken = self._promises.lately(now)
        config = self._config
        return PaceNow(config.ttft_target, config.itl_target, self._step_budget.kept if config.itl_target else 0.0, due, broken)
