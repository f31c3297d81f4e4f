"""What an engine publishes while it serves, read by a subscriber of vLLM's: at the end it knows what the prefix cache holds."""

import queue
import random
from collections import Counter
from functools import partial
from typing import Any, cast

import pytest

from jaxserve.cache.events import split_name
from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import RealClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.kv_events import KVEventsConfig
from jaxserve.engine.calls import Flush, KVEventSources, run_call
from jaxserve.engine.core import EngineCore
from jaxserve.engine.kv_events.publisher import KVEventSource
from jaxserve.engine.loop import EngineLoop
from jaxserve.engine.publishing import publish
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.step.plan import MoveKind
from tests.support.hash_executor import HashExecutor
from tests.support.kv_subscriber import Subscriber

PAGES, PAGE, ROWS, CONTEXT, OUTPUT = 24, 4, 4, 64, 4
PATIENCE = 20.0
NAMESPACE = CacheNamespace("m", "float32", "r")
SALTED = CacheNamespace("m", "float32", "r", salt="5:other").root()


class Served:
    """An engine that publishes, and one who subscribes."""

    def __init__(self, folder, format, windows=(None,), swap_slots=0):
        self.cache = KVCache(PAGES, PAGE, prefix_caching=True, windows=windows, max_chunk=16)
        config = SchedulerConfig(max_num_seqs=ROWS, max_num_batched_tokens=16, itl_target_ms=0.0, growth_reserve=0.0)
        self.executor = HashExecutor(PAGES, PAGE, ROWS, CONTEXT, windows=windows, swap_slots=swap_slots)
        swap = SwapSpace(swap_slots, 0.0) if swap_slots else None
        self.core = EngineCore(Scheduler(config, self.cache, CONTEXT, RealClock(), swap=swap), self.executor, overlap=True)
        events = KVEventsConfig(
            enable_kv_cache_events=True,
            endpoint=f"ipc://{folder}/events",
            replay_endpoint=f"ipc://{folder}/replays",
            topic="kv@pod@model",
            format=format,
        )
        publish(self.core, events, NAMESPACE.root().__eq__)
        sources = run_call(self.core, KVEventSources())
        (self.source,) = cast(list[KVEventSource], sources)
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.loop = EngineLoop(self.core, self.said.put, self.said.put)
        self.format = format
        self.subscribers = []

    def serve(self, prompts, root=None, max_tokens=OUTPUT):
        """Run requests to their ends. Returns their tokens, outputs included."""
        texts = {str(number): list(prompt) for number, prompt in enumerate(prompts)}
        for name, prompt in texts.items():
            params = SamplingParams(max_tokens=max_tokens)
            own = root or NAMESPACE.root()
            self.loop.add([EngineRequest(name, tuple(prompt), params, max_tokens, 0, frozenset(), own, 0.0)])
        left = len(texts)
        while left:
            for update in self.said.get(timeout=PATIENCE):
                texts[update.id].append(update.token)
                left -= update.finish_reason is not None
        return list(texts.values())

    def held(self):
        """(hash, group) of what the cache holds by its own account."""

        def look(core):
            names = core.scheduler.cache.prefixes.follow(self.said.put)
            core.scheduler.cache.prefixes.unfollow(self.said.put)
            return names

        names = [split_name(name) for name in self.loop.call(look).result(PATIENCE)]
        several = len(self.cache.windows) > 1
        return {(int.from_bytes(digest[-8:], "big"), group if several else None) for digest, group in names}

    def check(self, *subscribers):
        """All of them know what the cache holds, also one who comes now."""
        (late,) = self.opened(1)
        late.catch_up()
        for subscriber in (late, *subscribers):
            subscriber.follow(late.last)
            assert subscriber.blocks.keys() == self.held()
        return late

    def opened(self, count):
        endpoint, replay = self.source.endpoint, self.source.replay_endpoint
        assert replay is not None
        made = [Subscriber(endpoint, replay, self.source.topic, self.format) for _ in range(count)]
        self.subscribers += made
        return made

    def close(self):
        self.loop.stop()
        for subscriber in self.subscribers:
            subscriber.close()


@pytest.fixture(params=["array", "map"])
def served(request, tmp_path):
    one = Served(tmp_path, request.param)
    one.loop.start()
    yield one
    one.close()


def prompts(seed, count=8):
    """Some of them begin alike."""
    chosen = random.Random(seed)
    return [[*([1, 2, 3, 4] * chosen.randrange(4)), *chosen.choices(range(50), k=chosen.randrange(1, 24))] for _ in range(count)]


def test_a_subscriber_knows_what_the_cache_holds(served):
    (live,) = served.opened(1)
    known = set()
    for seed in range(6):
        known |= {tuple(text[:end]) for text in served.serve(prompts(seed)) for end in range(PAGE, len(text) + 1, PAGE)}
        served.check(live)
    kinds = Counter(type(event).__name__ for event in live.events)
    assert kinds["BlockRemoved"] > 3, "the pool is small"
    assert set(live.blocks.values()) <= known
    stored = [event for event in live.events if type(event).__name__ == "BlockStored"]
    assert {(event.medium, event.block_size, event.lora_id, event.extra_keys) for event in stored} == {("GPU", PAGE, None, None)}


def test_a_reset_is_told_to_who_follows_an_idle_engine(served):
    (live,) = served.opened(1)
    served.serve(prompts(1))
    assert served.check(live).blocks
    served.loop.call(partial(run_call, call=Flush())).result(PATIENCE)
    late = served.check(live)
    assert not late.blocks
    assert type(late.events[-1]).__name__ == "AllBlocksCleared"
    served.serve(prompts(2))
    assert served.check(live).blocks


def test_pages_under_a_salt_say_so_and_do_not_tell_it(served):
    plain = served.serve([range(1, 18)])
    salted = served.serve([range(1, 18)], SALTED)
    assert plain == salted
    late = served.check()
    first, *_, other = [event for event in late.events if event.parent_block_hash is None]
    assert first.token_ids == other.token_ids
    assert not set(first.block_hashes) & set(other.block_hashes)
    assert other.extra_keys == [(SALTED.hex(),), *(None for _ in other.block_hashes[1:])]


@pytest.mark.parametrize("format", ["array", "map"])
def test_groups_of_layers_have_blocks_of_their_own(tmp_path, format):
    one = Served(tmp_path, format, windows=(None, 6))
    one.loop.start()
    try:
        for seed in range(3):
            one.serve(prompts(seed))
        late = one.check()
    finally:
        one.close()
    spans = {
        (event.group_idx, event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window)
        for event in late.events
        if type(event).__name__ == "BlockStored"
    }
    assert spans == {(0, "full_attention", None), (1, "sliding_window", 6)}


def test_pages_that_wait_in_host_memory_are_not_found_and_not_told(tmp_path):
    one = Served(tmp_path, "array", swap_slots=16)
    one.loop.start()
    try:
        for seed in range(4):
            one.serve(prompts(seed), max_tokens=20)
            late = one.check()
    finally:
        one.close()
    assert MoveKind.FROM_TIER in {move.kind for plan in one.executor.plans for move in plan.moves}, "some were moved"
    assert {event.medium for event in late.events if type(event).__name__ != "AllBlocksCleared"} == {"GPU"}


def test_an_engine_that_publishes_nothing_gathers_nothing(tmp_path):
    one = Served(tmp_path, "array")
    one.core.close()
    one.loop.start()
    one.serve(prompts(1))
    assert one.cache.prefixes.events is None
    assert one.core.publisher is None
    assert run_call(one.core, KVEventSources()) == []
    one.close()
