"""A scheduler over an executor that works by hand, one step at a time."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.adapters import AdapterTable
from jaxserve.scheduler.policy import DEFAULT_POLICY, Policy
from jaxserve.scheduler.preemption import Preemption
from jaxserve.scheduler.request import EngineRequest, Update
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.step.plan import Plan
from jaxserve.types import ServiceClass
from tests.support.hash_executor import HashExecutor, Windows

MAX_LEN = 400
PAID, FREE, BATCH = ServiceClass
OF_ENGINE_REQUEST = (
    *("arrival", "tenant", "service_class", "parent", "queue_deadline", "deadline", "own_queue_timeout", "of_list", "task"),
    *("output", "num_readings", "resumed", "adapter"),
)


def request(
    name: str,
    prompt: int | Iterable[int],
    max_tokens: int = 8,
    root: bytes = b"root",
    eos: Iterable[int] = (),
    **more: Any,
) -> EngineRequest:
    """A prompt given as a number has that many tokens, unlike any other request's. `more` are its fields or its parameters."""
    if isinstance(prompt, int):
        prompt = [1 + len(name) + ord(name[-1]) % 30, *range(prompt - 1)]
    own = {"arrival": 0.0} | {name: more.pop(name) for name in OF_ENGINE_REQUEST if name in more}
    return EngineRequest(
        id=name,
        prompt=tuple(prompt),
        params=SamplingParams(**{"temperature": 0.0} | more),
        max_tokens=max_tokens,
        seed=7,
        eos_token_ids=frozenset(eos),
        cache_root=root,
        **own,
    )


def family(name: str, count: int, prompt: int | Iterable[int], max_tokens: int = 8, **more: Any) -> list[EngineRequest]:
    """The `count` sequences of one request, name0, name1, ...: all have the prompt of the first."""
    first = request(f"{name}0", prompt, max_tokens, **more)
    others = [request(f"{name}{index}", first.prompt, max_tokens, parent=first.id, **more) for index in range(1, count)]
    return [first, *others]


class Bench:
    """A scheduler, its executor, and one step at a time.

    Steps take no time that the scheduler hears of unless they are given `seconds`.
    """

    def __init__(
        self,
        *,
        num_pages: int = 101,
        page_size: int = 4,
        max_num_seqs: int = 4,
        budget: int = 16,
        prefix_caching: bool = True,
        max_len: int = MAX_LEN,
        policies: Policies | None = None,
        swap: SwapSpace | None = None,
        swap_slots: int = 0,
        poison: int | None = None,
        windows: Windows = (None,),
        policy: Policy = DEFAULT_POLICY,
        adapters: AdapterTable | None = None,
        **config: Any,
    ) -> None:
        settings = {"growth_reserve": 0.0, "itl_target_ms": 0.0} | config
        self.config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, **settings)
        self.cache = KVCache(num_pages, page_size, prefix_caching=prefix_caching, windows=windows, max_chunk=budget)
        self.clock = VirtualClock()
        self.preemptions: list[Preemption] = []
        self.scheduler = Scheduler(
            self.config,
            self.cache,
            max_len,
            self.clock,
            policies=policies,
            swap=swap,
            on_preemption=self.preemptions.append,
            policy=policy,
            adapters=adapters,
        )
        self.executor = HashExecutor(
            num_pages, page_size, max_num_seqs, max_len, swap_slots=swap_slots, poison=poison, windows=windows
        )
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, Update] = {}

    def add(self, *requests: EngineRequest) -> None:
        """Each is a request of its own."""
        for item in requests:
            self.scheduler.add([item])

    def plan(self) -> Plan | None:
        """The next plan; the scheduler is consistent after it."""
        plan = self.scheduler.schedule()
        self.scheduler.check()
        self._note(self.scheduler.take_ended())
        return plan

    def step(self, seconds: float | None = None) -> tuple[Plan, list[Update]]:
        """One step without overlap: the plan and its updates."""
        plan = self.plan()
        assert plan is not None, "nothing to compute"
        return plan, self.finish(plan, seconds)

    def finish(self, plan: Plan, seconds: float | None = None) -> list[Update]:
        """Run a step; its updates."""
        result = self.executor.submit(plan).result()
        self.clock.advance(seconds or 0.0)
        updates = self.scheduler.apply(plan, result, seconds)
        self.scheduler.check()
        self._note(updates)
        return updates

    def rows(self, seconds: float | None = None) -> dict[str, int]:
        """One step: sequence -> tokens computed."""
        return counts(self.step(seconds)[0])

    def run(self, steps: int, seconds: float | None = None) -> list[dict[str, int]]:
        """So many steps, or until nothing is left to do."""
        return [self.rows(seconds) for _ in itertools.takewhile(lambda _: self.scheduler.sequences, range(steps))]

    def _note(self, updates: Sequence[Update]) -> None:
        for update in updates:
            assert update.id not in self.ended, "something is told of a sequence that ended"
            if update.token is not None:
                self.tokens.setdefault(update.id, []).append(update.token)
            if update.finish_reason is not None or update.error is not None:
                self.ended[update.id] = update


def counts(plan: Plan) -> dict[str, int]:
    """Sequence -> tokens computed."""
    return dict(zip(plan.ids, np.diff(plan.query_start).tolist(), strict=True))


def row(plan: Plan, name: str) -> int:
    """The sequence's row."""
    return plan.ids.index(name)
