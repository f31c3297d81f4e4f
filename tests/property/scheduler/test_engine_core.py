"""Random operations on the engine core over an executor whose output can be worked out by hand; every invariant, every step."""

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from jaxserve.cache.kv_cache import KVCache
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.engine.core import EngineCore
from jaxserve.errors import QueueFullError
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.types import FinishReason
from tests.support.hash_executor import VOCAB, HashExecutor, expected

MAX_LEN = 40
EOS = frozenset({3})
ROOTS = (b"tenant-a", b"tenant-b")


class EngineMachine(RuleBasedStateMachine):
    """Adds, steps and aborts; compares every sequence with the oracle."""

    @initialize(
        page_size=st.sampled_from([1, 2, 4, 8]),
        spare_pages=st.integers(0, 12),
        max_num_seqs=st.integers(1, 5),
        extra_tokens=st.integers(0, 20),
        threshold=st.sampled_from([0, 1, 3]),
        watermarks=st.sampled_from([(0.0, 0.0), (0.0, 0.3), (0.1, 0.2), (0.3, 0.6)]),
        overlap=st.booleans(),
        prefix_caching=st.booleans(),
    )
    def start(self, page_size, spare_pages, max_num_seqs, extra_tokens, threshold, watermarks, overlap, prefix_caching):
        num_pages = -(-MAX_LEN // page_size) + 1 + spare_pages
        config = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + extra_tokens,
            long_prefill_token_threshold=threshold,
            max_waiting=6,
            low_watermark=watermarks[0],
            high_watermark=watermarks[1],
        )
        self.config = config
        self.cache = KVCache(num_pages, page_size, prefix_caching=prefix_caching)
        self.executor = HashExecutor(num_pages, page_size, max_num_seqs, MAX_LEN)
        self.core = EngineCore(Scheduler(config, self.cache, MAX_LEN, VirtualClock()), self.executor, overlap=overlap)
        self.counter = 0
        self.wanted = {}
        self.got = {}

    @rule(data=st.data(), length=st.integers(1, 30), shared=st.integers(0, 30), output=st.integers(1, 12))
    def add(self, data, length, shared, output):
        prompt = [7] * min(shared, length) + data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=length, max_size=length))
        prompt = tuple(prompt[:length])
        name = str(self.counter)
        self.counter += 1
        output = min(output, MAX_LEN - length)
        ignore_eos = data.draw(st.booleans())
        request = EngineRequest(
            id=name,
            prompt=prompt,
            params=SamplingParams(temperature=0, ignore_eos=ignore_eos),
            max_tokens=output,
            seed=0,
            eos_token_ids=EOS,
            cache_root=data.draw(st.sampled_from(ROOTS)),
            arrival=0.0,
        )
        full = self.core.scheduler.num_waiting >= 6
        try:
            self.core.add([request])
        except QueueFullError:
            assert full
            return
        assert not full
        self.wanted[name] = expected(list(prompt), output, frozenset() if ignore_eos else EOS)
        self.got[name] = []

    @rule(data=st.data())
    def abort(self, data):
        active = sorted(name for name, wanted in self.wanted.items() if self.got[name] != wanted)
        if active:
            name = data.draw(st.sampled_from(active))
            assert self.core.abort([name]) == [name]
            assert self.core.abort([name]) == []
            del self.wanted[name], self.got[name]

    @rule()
    def step(self):
        for update in self.core.step():
            if update.id not in self.wanted:
                raise AssertionError("an aborted sequence got a token")
            self.got[update.id].append(update.token)
            wanted = self.wanted[update.id]
            assert self.got[update.id] == wanted[: len(self.got[update.id])]
            finished = len(self.got[update.id]) == len(wanted)
            assert (update.reason is not None) == finished
            if finished:
                assert update.reason in {FinishReason.STOP, FinishReason.LENGTH}
        if self.executor.plans:
            plan = self.executor.plans[-1]
            assert plan.num_tokens <= self.config.max_num_batched_tokens
            assert plan.num_rows <= self.config.max_num_seqs

    @rule()
    def finish_all(self):
        for _ in range(4000):
            if not self.core.has_work:
                break
            self.step()
        assert not self.core.has_work, "the engine makes no progress"
        assert self.got == self.wanted
        assert self.cache.num_free == self.cache.num_usable

    @invariant()
    def consistent(self):
        if hasattr(self, "core"):
            self.core.scheduler.check()

    def teardown(self):
        if hasattr(self, "core"):
            self.finish_all()


def test_random_operations():
    phases = (Phase.explicit, Phase.reuse, Phase.generate)  # no shrinking: it takes minutes, and the failing run is printed
    run_state_machine_as_test(
        EngineMachine, settings=settings(max_examples=250, stateful_step_count=50, deadline=None, phases=phases)
    )
