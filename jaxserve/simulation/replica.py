"""One replica: the real engine core over a simulated executor, with the inbox that the engine thread has."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.cache.state_pool import StatePool
from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.engine.budgets import Budgets, Grant, cache_salt
from jaxserve.engine.core import EngineCore
from jaxserve.errors import InternalError, InvalidRequestError, JaxserveError
from jaxserve.executor.base import Capabilities
from jaxserve.planner.memory import Layout
from jaxserve.routing.demand import Demand
from jaxserve.routing.router import ReplicaLoad
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.demand import demand_of
from jaxserve.scheduler.policy import DEFAULT_POLICY, Policy
from jaxserve.scheduler.preemption import Preemption
from jaxserve.scheduler.request import EngineRequest, Update
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.simulation.calibrate import Fit
from jaxserve.simulation.costs import Calibration, CostModel
from jaxserve.simulation.drafts import PlayedDrafts, PlayedSpeculation
from jaxserve.simulation.executor import PlayedStep, SimulatedExecutor
from jaxserve.simulation.ledger import Record
from jaxserve.step.buckets import BucketGrid
from jaxserve.types import RequestOptions, ServiceClass
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.stats import Timeline

_PARAMS = SamplingParams(temperature=0.0, ignore_eos=True)  # an output ends when it is as long as the workload says
_MAX_ROOTS = 4096  # remembered; clients of a trace may be of any number of tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """What every replica is built from.

    Attributes:
        layout, calibration: what steps cost.
        fit: where they are from, if from a profile.
        min_rows: rows of the executor's smallest bucket.
        fine: whether its decode steps have the row counts of GPUs.
        scheduler, policies: the engine's own settings.
        policy: how schedulers choose where they may.
        limits: of the executor and the KV cache.
        prefix_caching: whether prompts share pages.
        speculation: who guesses tokens, and how often that is right; None for nobody.
        seed: of what is drawn of guesses.
    """

    layout: Layout
    calibration: Calibration
    fit: Fit | None
    min_rows: int
    fine: bool
    scheduler: SchedulerConfig
    policies: Policies
    limits: Capabilities
    prefix_caching: bool
    policy: Policy = DEFAULT_POLICY
    speculation: PlayedSpeculation | None = None
    seed: int = 0

    def grid(self, limits: Capabilities) -> BucketGrid:
        """The buckets of an executor with these limits."""
        grid = BucketGrid.make(
            max_rows=limits.max_num_seqs, max_tokens=limits.max_num_batched_tokens, min_rows=self.min_rows, fine=self.fine
        )
        return grid if self.speculation is None else grid.with_drafts(self.speculation.config.num_speculative_tokens)

    def drafts(self, grid: BucketGrid, index: int) -> PlayedDrafts | None:
        """What becomes of the drafts of one of the replicas; None if nobody guesses."""
        if self.speculation is None:
            return None
        draft = self.layout.draft
        costs = None if draft is None else CostModel(draft, self.calibration, grid)
        return PlayedDrafts(self.speculation, costs, f"{self.seed}/{index}")


@dataclass(slots=True)
class Totals:
    """What replicas did.

    Attributes:
        requests: that they were given.
        steps, rows, tokens: steps, and rows and tokens in them.
        drafted, draft_tokens, accepted: rows that had drafts, their drafts, and those that were right.
        choosing: rows that chose a token.
        draft_s: seconds that draft models worked.
        recomputed: tokens computed again after a preemption.
        lost: tokens computed for requests whose replica failed before they were done.
        preemptions, swapped: sequences that gave their pages back, and those of them whose pages were kept on the host.
        preempted_tokens, preempted_pages: computed tokens that they lost, and pages that became free.
        expected, actual: output tokens expected of sequences that ended, and those they got.
        queried, hits: prompt tokens looked up in the prefix cache, and found.
        busy_s: seconds that devices worked.
        turn_s: seconds that engines had something to do.
        kv_s, queue_s: share of pages in use, and requests waiting, times seconds of turns.
        max_kv, max_queue, max_rows: the most at any turn of one replica.
    """

    requests: int = 0
    steps: int = 0
    rows: int = 0
    tokens: int = 0
    drafted: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    choosing: int = 0
    draft_s: float = 0.0
    recomputed: int = 0
    lost: int = 0
    preemptions: int = 0
    swapped: int = 0
    preempted_tokens: int = 0
    preempted_pages: int = 0
    expected: float = 0.0
    actual: int = 0
    queried: int = 0
    hits: int = 0
    busy_s: float = 0.0
    turn_s: float = 0.0
    kv_s: float = 0.0
    queue_s: float = 0.0
    max_kv: float = 0.0
    max_queue: int = 0
    max_rows: int = 0

    def merge(self, other: Totals) -> None:
        for item in fields(self):
            mine, others = getattr(self, item.name), getattr(other, item.name)
            setattr(self, item.name, max(mine, others) if item.name.startswith("max_") else mine + others)


class Replica:
    """An engine and its inbox. A turn takes from the time it begins to the time the step it collects is over; what that step
    produced is `held` until then.

    Attributes:
        assigned: requests it was given and that did not end, by id.
        awake: whether its next turn is due; kept by the fleet.

    Args:
        timeline: told of queue, batch and cache over time.
    """

    def __init__(self, index: int, spec: ReplicaSpec, now: float, totals: Totals, timeline: Timeline) -> None:
        limits = spec.limits
        self.index = index
        self.assigned: dict[str, Record] = {}
        self.awake = False
        self._totals = totals
        self._timeline = timeline
        self._idle = False
        self._inbox: list[Record] = []
        self._held: list[Update] = []
        self._turn_seconds = 0.0
        self._progress: dict[str, int] = {}  # tokens of each unfinished sequence that were ever in the cache
        self._clock = VirtualClock(now)
        self._cache = KVCache(
            limits.num_pages,
            limits.page_size,
            prefix_caching=spec.prefix_caching,
            quota=_quota(spec),
            windows=limits.windows,
            max_chunk=limits.max_num_batched_tokens,
            states=None if limits.states is None else StatePool(limits.states),
        )
        grid = spec.grid(limits)
        played = spec.drafts(grid, index)
        self._scheduler = Scheduler(
            spec.scheduler,
            self._cache,
            limits.max_model_len,
            self._clock,
            policies=spec.policies,
            swap=SwapSpace(limits.swap_slots, limits.swap_page_seconds) if limits.swap_slots else None,
            on_preemption=self._preempted,
            step_sizes=grid.step_sizes,
            policy=spec.policy,
            speculation=None if played is None else played.speculation(spec.scheduler, self._clock),
        )
        self._budgets = Budgets(
            spec.policies,
            ServiceClass(spec.scheduler.default_class),
            num_pages=self._cache.num_usable,
            page_size=limits.page_size,
            windows=limits.windows,
            max_chunk=limits.max_num_batched_tokens,
        )
        costs = CostModel(spec.layout, spec.calibration, grid)
        executor = SimulatedExecutor(limits, costs, self._clock, spec.calibration.host_s, self._observe, played)
        self._core = EngineCore(self._scheduler, executor, overlap=spec.scheduler.overlap)

    def give(self, record: Record) -> None:
        self.assigned[record.id] = record
        self._totals.requests += 1
        self._inbox.append(record)

    def take_held(self) -> list[Update]:
        held, self._held = self._held, []
        for update in held:
            if update.finish_reason is not None or update.error is not None:
                self._progress.pop(update.id, None)  # it may never have run
                del self.assigned[update.id]
        return held

    def take_inbox(self, now: float) -> list[tuple[Record, JaxserveError]]:
        """Hand the inbox to the engine at the beginning of a turn. Returns those that it did not take."""
        self._clock.advance(max(now - self._clock.now(), 0.0))
        refused = []
        for record in self._inbox:
            try:
                request = self._engine_request(record, now)
                refused_at_gate = self._scheduler.gate.refusal([request])
                if refused_at_gate is not None:
                    raise refused_at_gate
                self._core.add([request])
            except JaxserveError as error:
                del self.assigned[record.id]
                refused.append((record, error))
        self._inbox = []
        return refused

    def step(self) -> float | None:
        """One turn of the engine. Returns the time at which it is over, None if there was nothing to do.

        Raises InternalError: nothing can run and nothing is running.
        """
        if not self._core.has_work:
            return None
        started, steps, lengths = self._clock.now(), self._totals.steps, self._scheduler.lengths
        queried, hits = self._cache.queried_tokens, self._cache.hit_tokens
        expected, actual = lengths.expected_tokens, lengths.actual_tokens
        self._held = self._core.step()
        now, totals = self._clock.now(), self._totals
        idle = not self._held and totals.steps == steps
        if idle and self._idle and self._core.has_work:  # twice: the first may have collected a chunk that chose no token
            waiting, free = self._scheduler.num_waiting, self._cache.num_free
            raise InternalError(f"the scheduler is stuck at {now:.3f} s: {waiting} waiting, {free} pages free, nothing runs")
        self._idle = idle
        totals.expected += lengths.expected_tokens - expected
        totals.actual += lengths.actual_tokens - actual
        totals.queried += self._cache.queried_tokens - queried
        totals.hits += self._cache.hit_tokens - hits
        self._watch(started, now - started)
        return now

    def load(self) -> ReplicaLoad:
        """What it says of itself."""
        return ReplicaLoad(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting + len(self._inbox),
            pages_total=self._cache.num_usable,
            pages_free=self._cache.num_free,
            step_seconds=self._turn_seconds,
        )

    def demand(self, now: float) -> Demand:
        """What its requests still ask of it; what it was given in this turn counts from the next on."""
        self._clock.advance(max(now - self._clock.now(), 0.0))
        return demand_of(self._scheduler)

    def write_off(self) -> list[Record]:
        """The replica is gone, with what it held. Returns the requests that it leaves behind."""
        self._totals.lost += sum(self._progress.values())
        return list(self.assigned.values())

    def _watch(self, started: float, seconds: float) -> None:
        totals = self._totals
        used = 1.0 - self._cache.num_free / self._cache.num_usable
        queue = self._scheduler.num_waiting + len(self._inbox)
        self._turn_seconds = seconds
        totals.turn_s += seconds
        totals.kv_s += used * seconds
        totals.queue_s += queue * seconds
        totals.max_kv, totals.max_queue = max(totals.max_kv, used), max(totals.max_queue, queue)
        levels = {"kv_use": used, "queue": float(queue), "running": float(self._scheduler.num_running)}
        self._timeline.level(started, levels, seconds)

    def _preempted(self, event: Preemption) -> None:
        totals = self._totals
        totals.preemptions += 1
        totals.swapped += event.swapped
        totals.preempted_tokens += event.tokens_lost
        totals.preempted_pages += event.pages_gained
        self._timeline.count(event.time, "preemptions")

    def _observe(self, step: PlayedStep) -> None:
        totals, progress, plan, seconds = self._totals, self._progress, step.plan, step.seconds
        totals.steps += 1
        totals.rows += plan.num_rows
        totals.tokens += plan.num_tokens
        totals.busy_s += seconds
        totals.draft_s += step.draft_seconds
        totals.max_rows = max(totals.max_rows, plan.num_rows)
        totals.choosing += int(plan.samples.sum())
        if plan.num_drafts.any():
            totals.drafted += int((plan.num_drafts > 0).sum())
            totals.draft_tokens += int(plan.num_drafts.sum())
            totals.accepted += int((step.ends - step.starts).sum()) - plan.num_tokens + int(plan.num_drafts.sum())
        for name, start, end in zip(plan.ids, step.starts.tolist(), step.ends.tolist(), strict=True):
            known = progress.get(name, 0)
            if known > start:
                totals.recomputed += min(known, end) - start
                end = max(known, end)
            progress[name] = end
        self._timeline.level(self._clock.now(), {"step_tokens": float(plan.num_tokens)}, seconds)

    def _engine_request(self, record: Record, now: float) -> EngineRequest:
        """What intake makes of it. Raises InvalidRequestError if its class or tenant can never have so many pages."""
        request = record.request
        if not record.moves:
            record.granted = now
        grant = self._budgets.grant(request.options, record.granted)
        return EngineRequest(
            id=record.id,
            prompt=request.tokens(),
            params=_PARAMS,
            max_tokens=_max_tokens(request, grant),
            seed=0,
            eos_token_ids=frozenset(),
            cache_root=cache_root(request.tenant),
            arrival=now,
            tenant=request.tenant,
            service_class=grant.service_class,
            queue_deadline=math.inf if record.moves and record.computed else grant.queue_deadline,
            own_queue_timeout=grant.own_queue_timeout,
            deadline=grant.deadline,
            output=(0,) * record.computed,
            resumed=record.moves > 0,
        )


def _max_tokens(request: WorkloadRequest, grant: Grant) -> int:
    prompt, output = request.prompt_tokens, request.output_tokens
    if grant.max_total_tokens is not None:
        output = min(output, grant.max_total_tokens - prompt)
        if output < 1:
            raise InvalidRequestError(
                f"max_total_tokens is {grant.max_total_tokens}, but the prompt has {prompt} tokens", param="max_total_tokens"
            )
    if grant.max_kv_tokens is not None and prompt + output > grant.max_kv_tokens:
        raise InvalidRequestError(f"{prompt} + {output} tokens are more than {grant.kv_limit} hold", param="prompt")
    return output


def _quota(spec: ReplicaSpec) -> Callable[[str], int | None]:
    """Pages that a tenant may have before its cached ones are evicted first; None for all."""
    usable = spec.limits.num_pages - 1

    def quota(tenant: str) -> int | None:
        share = spec.policies.of_tenant(tenant).kv_share
        return None if share == 1.0 else int(share * usable)

    return quota


@lru_cache(_MAX_ROOTS)
def cache_root(tenant: str) -> bytes:
    """The hash that pages of a tenant's prompts are chained to."""
    salt = cache_salt(RequestOptions(tenant=tenant))
    return CacheNamespace("simulation", "", "", salt=salt).root()
