"""One replica: the real engine core over a simulated executor, with the inbox that the engine thread has."""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.cache.kv_cache import KVCache
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.engine.core import EngineCore
from jaxserve.errors import InternalError, RefusedError
from jaxserve.executor.base import Capabilities
from jaxserve.executor.buckets import BucketGrid
from jaxserve.executor.simulated import Calibration, CostModel, SimulatedExecutor
from jaxserve.planner.memory import Layout
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.plan import Plan
from jaxserve.scheduler.request import EngineRequest
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.scheduler.update import Update
from jaxserve.simulation.calibrate import Fit
from jaxserve.simulation.ledger import Record
from jaxserve.simulation.stats import Timeline

_PARAMS = SamplingParams(temperature=0.0, ignore_eos=True)  # an output ends when it is as long as the workload says
_NAMESPACE = b"simulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """What every replica is built from.

    Attributes:
        layout, calibration: what steps cost.
        fit: where they are from, if from a profile.
        min_rows: rows of the executor's smallest bucket.
        scheduler: the engine's own settings.
        limits: of the executor and the KV cache.
        prefix_caching: whether prompts share pages.
    """

    layout: Layout
    calibration: Calibration
    fit: Fit | None
    min_rows: int
    scheduler: SchedulerConfig
    limits: Capabilities
    prefix_caching: bool


@dataclass(slots=True)
class Totals:
    """What replicas did.

    Attributes:
        steps, rows, tokens: steps, and rows and tokens in them.
        recomputed: tokens computed again after a preemption.
        lost: tokens computed for requests whose replica failed before they were done.
        preemptions: sequences that gave their pages back.
        queried, hits: prompt tokens looked up in the prefix cache, and found.
        busy_s: seconds that devices worked.
        turn_s: seconds that engines had something to do.
        kv_s, queue_s: share of pages in use, and requests waiting, times seconds of turns.
        max_kv, max_queue, max_rows: the most at any turn of one replica.
    """

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    recomputed: int = 0
    lost: int = 0
    preemptions: int = 0
    queried: int = 0
    hits: int = 0
    busy_s: float = 0.0
    turn_s: float = 0.0
    kv_s: float = 0.0
    queue_s: float = 0.0
    max_kv: float = 0.0
    max_queue: int = 0
    max_rows: int = 0


class Replica:
    """An engine and its inbox. A turn takes from the time it begins to the time the step it collects is over; what that step
    produced is `held` until then.

    Attributes:
        index: its number.
        assigned: requests it was given and that did not end, by id.
        awake: whether its next turn is due; kept by the fleet.

    Args:
        index: its number.
        spec: what it is built from.
        now: time at which it starts.
        totals: where its work is added.
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
        self._progress: dict[str, int] = {}  # tokens of each unfinished sequence that were ever in the cache
        self._clock = VirtualClock(now)
        self._cache = KVCache(limits.num_pages, limits.page_size, prefix_caching=spec.prefix_caching)
        self._scheduler = Scheduler(spec.scheduler, self._cache, limits.max_model_len, self._clock)
        grid = BucketGrid.make(max_rows=limits.max_num_seqs, max_tokens=limits.max_num_batched_tokens, min_rows=spec.min_rows)
        costs = CostModel(spec.layout, spec.calibration, grid)
        executor = SimulatedExecutor(limits, costs, self._clock, spec.calibration.host_s, self._observe)
        self._core = EngineCore(self._scheduler, executor, overlap=spec.scheduler.overlap)

    def give(self, record: Record) -> None:
        """Put a request into the inbox."""
        self.assigned[record.id] = record
        self._inbox.append(record)

    def take_held(self) -> list[Update]:
        """What the last turn produced; its time has come."""
        held, self._held = self._held, []
        for update in held:
            if update.reason is not None:
                del self._progress[update.id]
                del self.assigned[update.id]
        return held

    def take_inbox(self, now: float) -> list[tuple[Record, RefusedError]]:
        """Hand the inbox to the engine at the beginning of a turn. Returns those that it refused."""
        self._clock.advance(max(now - self._clock.now(), 0.0))
        refused = []
        for record in self._inbox:
            try:
                self._core.add([_engine_request(record, now)])
            except RefusedError as error:
                del self.assigned[record.id]
                refused.append((record, error))
        self._inbox = []
        return refused

    def step(self) -> float | None:
        """One turn of the engine. Returns the time at which it is over, None if there was nothing to do.

        Raises:
            InternalError: nothing can run and nothing is running.
        """
        if not self._core.has_work:
            return None
        started, steps, preemptions = self._clock.now(), self._totals.steps, self._scheduler.num_preemptions
        queried, hits = self._cache.queried_tokens, self._cache.hit_tokens
        self._held = self._core.step()
        now, totals = self._clock.now(), self._totals
        idle = not self._held and totals.steps == steps
        if idle and self._idle and self._core.has_work:  # twice: the first may have collected a chunk that chose no token
            waiting, free = self._scheduler.num_waiting, self._cache.num_free
            raise InternalError(f"the scheduler is stuck at {now:.3f} s: {waiting} waiting, {free} pages free, nothing runs")
        self._idle = idle
        preempted = self._scheduler.num_preemptions - preemptions
        totals.preemptions += preempted
        totals.queried += self._cache.queried_tokens - queried
        totals.hits += self._cache.hit_tokens - hits
        self._watch(started, now - started, preempted)
        return now

    def write_off(self) -> list[Record]:
        """The replica is gone, with what it held. Returns the requests that it leaves behind."""
        self._totals.lost += sum(self._progress.values())
        return list(self.assigned.values())

    def _watch(self, started: float, seconds: float, preempted: int) -> None:
        totals = self._totals
        used = 1.0 - self._cache.num_free / self._cache.num_usable
        queue = self._scheduler.num_waiting + len(self._inbox)
        totals.turn_s += seconds
        totals.kv_s += used * seconds
        totals.queue_s += queue * seconds
        totals.max_kv, totals.max_queue = max(totals.max_kv, used), max(totals.max_queue, queue)
        levels = {"kv_use": used, "queue": float(queue), "running": float(self._scheduler.num_running)}
        self._timeline.level(started, levels, seconds)
        if preempted:
            self._timeline.count(started, "preemptions", preempted)

    def _observe(self, plan: Plan, seconds: float) -> None:
        """Count a step, and the tokens in it that were in the cache before."""
        totals, progress = self._totals, self._progress
        totals.steps += 1
        totals.rows += plan.num_rows
        totals.tokens += plan.num_tokens
        totals.busy_s += seconds
        totals.max_rows = max(totals.max_rows, plan.num_rows)
        starts = plan.kv_length - (plan.query_start[1:] - plan.query_start[:-1])
        for name, start, end in zip(plan.ids, starts.tolist(), plan.kv_length.tolist(), strict=True):
            known = progress.get(name, 0)
            if known > start:
                totals.recomputed += min(known, end) - start
            if end > known:
                progress[name] = end
        self._timeline.level(self._clock.now(), {"step_tokens": float(plan.num_tokens)}, seconds)


def _engine_request(record: Record, now: float) -> EngineRequest:
    return EngineRequest(
        id=record.id,
        prompt=record.request.tokens(),
        params=_PARAMS,
        max_tokens=record.request.output_tokens,
        seed=0,
        eos_token_ids=frozenset(),
        cache_root=_NAMESPACE,
        arrival=now,
    )
