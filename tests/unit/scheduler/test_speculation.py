"""Sequences with drafts, good and bad: they get the tokens that they get one at a time, whatever else happens to them."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.engine.core import EngineCore
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.speculation.device import DeviceGuesses
from jaxserve.speculation.drafter import Guess
from jaxserve.speculation.ngram import NgramDrafter
from jaxserve.speculation.speculation import Speculation
from jaxserve.speculation.suffix import Bounds, SuffixDrafter
from tests.support.bench import MAX_LEN, family, request
from tests.support.hash_executor import VOCAB, HashExecutor, expected, next_token, seen
from tests.support.scripted_grammars import ScriptedGrammars, params_of
from tests.support.watched_parts import oracle

PAGE, ROWS, DRAFTS = 4, 4, 4


class Prophet:
    """Guesses what the executor chooses; with `wrong` it may err at any place, or at every one."""

    def __init__(self, windows, wrong=0.0):
        self.windows, self.wrong = windows, wrong
        self.chances = random.Random(0)

    def begin(self, tenant, num_prompt):
        return self

    def end(self, tokens):
        pass

    def propose(self, tokens, most):
        known = list(tokens)
        for _ in range(most):
            token = next_token(seen(known, self.windows))
            known.append((token + 1) % VOCAB if self.chances.random() < self.wrong else token)
        return Guess(tuple(known[len(tokens) :]), is_long=True)


ON_DEVICE = {"device right": 0.0, "device wrong": 1.0, "device random": 0.4}
"""How often a draft model errs."""
DRAFTERS: dict[str, Callable[[Any], Any]] = {
    "right": Prophet,
    "wrong": lambda windows: Prophet(windows, 1.0),
    "random": lambda windows: Prophet(windows, 0.4),
    "ngram": lambda windows: NgramDrafter(1, 3),
    "suffix": lambda windows: SuffixDrafter(Bounds(8, 4.0, 0.0), 20, 1000),
}


class Engine:
    """An engine with drafts, whose steps take time."""

    def __init__(self, drafter, windows=(None,), *, num_pages=101, budget=16, overlap=True, swap=0):
        config = SchedulerConfig(max_num_seqs=ROWS, max_num_batched_tokens=budget, growth_reserve=0.0, itl_target_ms=0.0)
        cache = KVCache(num_pages, PAGE, prefix_caching=True, windows=windows, max_chunk=budget)
        self.clock = VirtualClock()
        guesses = DRAFTS if drafter in ON_DEVICE else 0
        self.executor = HashExecutor(
            num_pages, PAGE, ROWS, MAX_LEN, windows=windows, swap_slots=swap, guesses=guesses, wrong=ON_DEVICE.get(drafter, 0.0)
        )
        speculation = (
            DeviceGuesses(DRAFTS, max_rows=ROWS, max_tokens=budget)
            if guesses
            else Speculation(DRAFTERS[drafter](windows), DRAFTS, self.clock, max_rows=ROWS, max_tokens=budget)
        )
        self.scheduler = Scheduler(
            config,
            cache,
            MAX_LEN,
            self.clock,
            swap=SwapSpace(swap, 0.0) if swap else None,
            speculation=speculation,
            masker=ScriptedGrammars(),
        )
        grammars = ScriptedGrammars()
        self.core = EngineCore(self.scheduler, self.executor, overlap=overlap, grammars=grammars)  # type: ignore[arg-type]
        self.got: dict[str, list[int]] = {}

    def step(self):
        self.clock.advance(0.01)
        for update in self.core.step():
            assert update.error is None
            if update.token is not None:
                self.got.setdefault(update.id, []).append(update.token)
        self.core.emitted()
        self.scheduler.check()

    def run(self):
        while self.core.has_work:
            self.step()
        assert self.scheduler.cache.num_free == self.scheduler.cache.num_usable
        return self.got

    @property
    def num_drafts(self):
        return sum(int(plan.num_drafts.sum()) for plan in self.executor.plans)


@settings(deadline=None, max_examples=120)
@given(st.data())
def test_tokens_are_those_without_drafts(data):
    """With few pages and a swap space, siblings that fork, grammars, penalties, windows, stop tokens and aborts."""
    windows = data.draw(st.sampled_from([(None,), (None,), (5,), (None, 3)]))
    engine = Engine(
        data.draw(st.sampled_from(sorted({**DRAFTERS, **ON_DEVICE}))),
        windows,
        num_pages=data.draw(st.integers(24, 60)),
        overlap=data.draw(st.booleans()),
        swap=data.draw(st.sampled_from([0, 0, 8])),
    )
    wanted, aborted = {}, set()
    for number in range(data.draw(st.integers(1, 6))):
        asks = data.draw(
            st.sampled_from(
                [
                    {},
                    {},
                    {},
                    {"presence_penalty": 1.0},
                    {"max_draft_tokens": 1},
                    {"structured_outputs": params_of(number), "ignore_eos": True},
                ]
            )
        )
        count, length = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 14))
        stops = frozenset(data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=2)))
        group = family(f"{number}-", count, [number % 2, *range(length)], data.draw(st.integers(1, 20)), eos=stops, **asks)
        engine.core.add(group)
        for one in group:
            form = one.params.structured_outputs
            stops_here = frozenset() if one.params.ignore_eos else stops
            free = expected(list(one.prompt), one.max_tokens, stops_here, windows=windows)
            wanted[one.id] = free if form is None else oracle(one, windows)
    for _ in range(data.draw(st.integers(0, 12))):
        if engine.core.has_work:
            engine.step()
        if (active := sorted(engine.scheduler.sequences)) and data.draw(st.integers(0, 9)) == 0:
            name = data.draw(st.sampled_from(active))
            engine.core.abort([name])
            aborted.add(name)
    got = engine.run()
    for name, tokens in wanted.items():
        assert got.get(name, []) == (tokens[: len(got.get(name, []))] if name in aborted else tokens)


@pytest.mark.parametrize("overlap", [False, True])
def test_an_engine_that_overlaps_its_steps_has_drafts_too(overlap):
    """For the step before one with drafts is waited for."""
    engine = Engine("right", overlap=overlap)
    engine.core.add([request("a", [1, 2, 3], 41)])
    engine.run()
    assert len(engine.executor.plans) <= 11 + 2 * overlap


@pytest.mark.parametrize("windows", [(None,), (None, 3), (6, 3)])
def test_guesses_end_where_the_context_does(windows):
    """No sequence has pages for more tokens than it may have."""
    engine = Engine("device right", windows, num_pages=2 * MAX_LEN // PAGE)
    assert MAX_LEN % PAGE == 0
    engine.core.add([request("a", [1, 2, 3], MAX_LEN - 3)])
    assert len(engine.run()["a"]) == MAX_LEN - 3


def test_what_the_device_guesses_is_verified_without_waiting():
    """Steps overlap: a plan names guesses that nobody knows yet."""
    engine = Engine("device right")
    engine.core.add([request("a", [1, 2, 3], 41)])
    engine.run()
    assert len(engine.executor.plans) <= 15
    assert any((plan.tokens < 0).sum() == 1 + DRAFTS for plan in engine.executor.plans)


@pytest.mark.parametrize("drafter", ["right", "device right"])
def test_a_request_may_have_fewer_drafts_or_none(drafter):
    for asked, most in ((0, 0), (2, 2), (-1, DRAFTS), (100, DRAFTS)):
        engine = Engine(drafter)
        engine.core.add([request("a", [1, 2, 3], 30, max_draft_tokens=asked)])
        engine.run()
        assert max(int(plan.num_drafts.max()) for plan in engine.executor.plans) == most


def test_wrong_drafts_are_given_up_where_they_cost():
    """And steps are not kept waiting for them."""
    engine = Engine("wrong")
    engine.core.add([request("a", [1, 2, 3], 200)])
    for _ in range(400):
        engine.scheduler._drafting.observe(1, 1, 1.0)
        engine.scheduler._drafting.observe(1, 5, 1.5)
    engine.run()
    assert engine.num_drafts < 20


def test_what_a_tenant_was_answered_is_guessed_for_it_again():
    engine = Engine("suffix")
    for name, tenant, root in (("first", "a", b"x"), ("again", "a", b"x"), ("salted", "a", b"y"), ("other", "b", b"x")):
        before = len(engine.executor.plans)
        engine.core.add([request(name, [1, 2, 3, 4], 40, root, tenant=tenant)])
        engine.run()
        steps = len(engine.executor.plans) - before
        assert steps < 25 if name == "again" else steps >= 25, name


def test_counts():
    engine = Engine("right")
    engine.core.add([request("a", [1, 2, 3], 21)])
    engine.run()
    counts = engine.scheduler.counts()
    assert counts.spec_decode_num_draft_tokens == counts.spec_decode_num_accepted_tokens == engine.num_drafts > 10
    assert counts.spec_decode_num_drafts == sum(int((plan.num_drafts > 0).sum()) for plan in engine.executor.plans)
    assert sum(counts.accepted_at) == engine.num_drafts
