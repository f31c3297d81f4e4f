"""Sequences that give way for a time."""

import pytest

from jaxserve.cache.kv_cache import KVCache
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.engine.budgets import Budgets
from jaxserve.engine.core import EngineCore
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.types import RequestOptions, ServiceClass
from tests.support.hash_executor import HashExecutor, expected
from tests.support.watched_parts import Wish, requests_of

PAGE, CONTEXT = 4, 64
OPTIONS = RequestOptions(service_class=ServiceClass.INTERACTIVE_PAID)


class Engine:
    """A core with a scheduler as wanted; `got` holds the tokens of each sequence."""

    def __init__(self, *, pages: int = 100, **config) -> None:
        self.clock = VirtualClock()
        settings = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "itl_target_ms": 0.0} | config
        cache = KVCache(pages, PAGE, prefix_caching=False)
        self.preempted: list[str] = []
        self.scheduler = Scheduler(
            SchedulerConfig(**settings), cache, CONTEXT, self.clock, on_preemption=lambda event: self.preempted.append(event.id)
        )
        self.executor = HashExecutor(pages, PAGE, settings["max_num_seqs"], CONTEXT)
        self.core = EngineCore(self.scheduler, self.executor, overlap=False)
        self.budgets = Budgets(Policies(), ServiceClass.BATCH, num_pages=pages - 1, page_size=PAGE)
        self.got: dict[str, list[int | None]] = {}

    def add(self, name, prompt=(1, 2, 3), output=30, n=1):
        wish = Wish(prompt=prompt, output=output, n=n, ignore_eos=True, options=OPTIONS)
        requests = requests_of(wish, name, self.clock.now(), self.budgets)
        self.core.add(requests)
        self.got.update((one.id, []) for one in requests)
        return [one.id for one in requests]

    def steps(self, count=1):
        for _ in range(count):
            for update in self.core.step():
                assert update.error is None
                self.got[update.id].append(update.token)
            self.scheduler.check()

    def finish(self):
        while self.core.has_work:
            self.steps()


def test_the_others_get_the_rows() -> None:
    engine = Engine(max_num_seqs=3, max_num_batched_tokens=3)
    (slow,), (fast,) = engine.add("slow"), engine.add("fast")
    engine.steps(4)
    engine.core.demote([slow], demoted=True)
    (late,) = engine.add("late", prompt=tuple(range(1, 21)))
    before, fast_before = len(engine.got[slow]), len(engine.got[fast])
    engine.steps(6)  # the prompt of the late one takes all that decodes leave
    assert len(engine.got[slow]) == before
    assert not engine.got[late]
    assert len(engine.got[fast]) == fast_before + 6
    engine.core.demote([slow], demoted=False)
    engine.steps(2)
    assert len(engine.got[slow]) == before + 2
    engine.finish()
    assert engine.got[slow] == expected([1, 2, 3], 30)


def test_its_pages_go_first() -> None:
    engine = Engine(pages=14, growth_reserve=0.0, low_watermark=0.0, high_watermark=0.0)
    (slow,), (fast,) = engine.add("slow"), engine.add("fast")
    engine.steps(5)
    engine.core.demote([slow], demoted=True)
    engine.finish()
    assert set(engine.preempted) == {slow}
    assert engine.got[slow] == engine.got[fast] == expected([1, 2, 3], 30)


@pytest.mark.parametrize("demoted", [True, False])
def test_in_the_queue_it_waits_with_the_batch_class(demoted: bool) -> None:
    engine = Engine(max_num_seqs=1, aging_s=1e6)
    (running,) = engine.add("running", output=2)
    engine.steps()
    (slow,) = engine.add("slow", output=2)
    (other,) = engine.add("other", output=2)
    engine.core.demote([slow], demoted=True)
    if not demoted:
        engine.core.demote([slow], demoted=False)
    engine.finish()
    order = [name for plan in engine.executor.plans for name in plan.ids]
    assert (order.index(slow) > order.index(other)) == demoted
    assert order[0] == running


def test_siblings_that_are_held_are_demoted_too() -> None:
    engine = Engine(max_num_seqs=1)
    engine.add("running", output=3)
    ids = engine.add("slow", output=3, n=3)
    engine.core.demote([*ids, "nobody's"], demoted=True)
    assert [engine.scheduler.sequences[name].batch for name in ids] == [True] * 3
    engine.steps(4)
    engine.core.demote(ids, demoted=False)
    assert not any(sequence.batch for sequence in engine.scheduler.sequences.values())
    engine.finish()
    assert all(len(engine.got[name]) == 3 for name in ids)
