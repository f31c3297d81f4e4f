"""Sequences with drafts, good and bad: they get the tokens that they get one at a time, whatever else happens to them."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.state_pool import StatePool
from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.states import StatePlaces
from jaxserve.engine.core import EngineCore
from jaxserve.scheduler import constraints
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.speculation.device import DeviceGuesses
from jaxserve.speculation.drafter import Guess
from jaxserve.speculation.ngram import NgramDrafter
from jaxserve.speculation.speculation import Speculation
from jaxserve.speculation.suffix import Bounds, SuffixDrafter
from tests.support.bench import MAX_LEN, family, request
from tests.support.hash_executor import VOCAB, HashExecutor, expected, first_allowed, next_token, seen
from tests.support.scripted_grammars import DEAD, ScriptedConstraint, ScriptedGrammars, params_of
from tests.support.watched_parts import oracle

PAGE, ROWS, DRAFTS = 4, 4, 4


class Prophet:
    """Guesses what the executor chooses; with `wrong` it may err at any place, or at every one.

    What comes otherwise, because of a form or of `min_tokens`, it knows of the texts that it was told.
    """

    def __init__(self, windows, wrong=0.0):
        self.windows, self.wrong = windows, wrong
        self.chances = random.Random(0)
        self.told: list[list[int]] = []

    def begin(self, tenant, num_prompt):
        return self

    def end(self, tokens):
        pass

    def propose(self, tokens, most):
        known = list(tokens)
        for _ in range(most):
            size = len(known)
            texts = (text for text in self.told if size < len(text) and text[:size] == known)
            token = next((text[size] for text in texts), next_token(seen(known, self.windows)))
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
        recurrent = windows == (None,) and not swap  # beside pages, which tell the same of drafts that were wrong
        states = StatePlaces(ROWS, 1 + DRAFTS, 5, 2 * PAGE) if recurrent else None
        pool = None if states is None else StatePool(states)
        cache = KVCache(num_pages, PAGE, prefix_caching=True, windows=windows, max_chunk=budget, states=pool)
        self.clock = VirtualClock()
        guesses = DRAFTS if drafter in ON_DEVICE else 0
        self.executor = HashExecutor(
            num_pages,
            PAGE,
            ROWS,
            MAX_LEN,
            windows=windows,
            swap_slots=swap,
            guesses=guesses,
            wrong=ON_DEVICE.get(drafter, 0.0),
            suppresses=True,
            states=states,
        )
        self.drafter = DRAFTERS.get(drafter, Prophet)(windows)
        speculation = (
            DeviceGuesses(DRAFTS, max_rows=ROWS, max_tokens=budget)
            if guesses
            else Speculation(self.drafter, DRAFTS, self.clock, max_rows=ROWS, max_tokens=budget)
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

    def tell(self, texts):
        """What comes, to drafters that know."""
        if isinstance(self.drafter, Prophet):
            self.drafter.told += texts

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
                    {"presence_penalty": 1.0, "min_tokens": 3, "stop_token_ids": (5, 6)},
                    {"max_draft_tokens": 1},
                    {"structured_outputs": params_of(number), "ignore_eos": True},
                    {"structured_outputs": params_of(number), "ignore_eos": True, "logprobs": 0},
                    {"min_tokens": 6, "stop_token_ids": tuple(range(0, VOCAB, 5))},
                ]
            )
        )
        count, length = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 14))
        stops = frozenset(data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=2)))
        group = family(f"{number}-", count, [number % 2, *range(length)], data.draw(st.integers(1, 20)), eos=stops, **asks)
        engine.core.add(group)
        for one in group:
            form = one.params.structured_outputs
            stops_here = frozenset() if one.params.ignore_eos else stops | set(one.params.stop_token_ids)
            least = one.params.min_tokens
            free = expected(list(one.prompt), one.max_tokens, stops_here, windows=windows, min_tokens=least)
            wanted[one.id] = free if form is None else oracle(one, windows)
            engine.tell([[*one.prompt, *wanted[one.id]]])
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


@pytest.mark.parametrize(
    ("drafter", "overlap"), [("right", False), ("right", True), ("random", True), ("device right", True), ("device random", True)]
)
def test_no_stop_token_comes_before_min_tokens_whatever_is_guessed(drafter, overlap):
    engine, wanted, stops = Engine(drafter, overlap=overlap), {}, tuple(range(0, VOCAB, 4))
    for number in range(40):
        one = request(str(number), [number, 1, 2], 20, min_tokens=number % 13, stop_token_ids=stops)
        wanted[one.id] = expected(list(one.prompt), 20, frozenset(stops), min_tokens=number % 13)
        engine.tell([[*one.prompt, *wanted[one.id]]])
        engine.core.add([one])
    assert engine.run() == wanted
    assert engine.num_drafts > 80


def constrained(name, seed, **more):
    return request(name, [1, 2, 3], 30, structured_outputs=params_of(seed), ignore_eos=True, **more)


@pytest.mark.parametrize("asks", [{}, {"logprobs": 0}], ids=["forced", "chosen"])
def test_rows_of_a_form_have_drafts(asks):
    """Those that ask for log-probabilities have every token chosen, forced ones as well."""
    steps = {}
    for most in (-1, 0):
        engine = Engine("right")
        for seed in range(8):
            one = constrained(str(seed), seed, max_draft_tokens=most, **asks)
            engine.tell([[*one.prompt, *oracle(one, (None,))]])
            engine.core.add([one])
            assert engine.run()[one.id] == oracle(one, (None,))
        steps[most] = len(engine.executor.plans)
    assert steps[-1] < (0.9 if not asks else 0.6) * steps[0]


@pytest.mark.parametrize("most", [-1, 0])
def test_drafts_that_lead_to_where_nothing_may_follow(most):
    """It fails behind the last token that it may say, as without drafts; its neighbour does not notice."""
    engine = Engine("right")
    one, other = constrained("dead", DEAD, max_draft_tokens=most), request("other", [4, 5, 6], 20)
    said = list(one.prompt)
    for _ in range(2):
        allowed = ScriptedConstraint(DEAD).allowed(said[3:])
        said.append(first_allowed(next_token(said), allowed))
    engine.tell([said])
    engine.core.add([one])
    engine.core.add([other])
    updates = []
    while engine.core.has_work:
        updates += engine.core.step()
        engine.scheduler.check()
    told = [update for update in updates if update.id == "dead"]
    assert [update.token for update in told] == [*said[3:], None]
    assert str(told[-1].error) == "nothing may follow"
    assert [update.token for update in updates if update.id == "other"] == expected([4, 5, 6], 20)
    assert engine.scheduler.cache.num_free == engine.scheduler.cache.num_usable


def masks_stay_behind_drafts(patch):
    patch.setattr(ScriptedConstraint, "checkpoint", lambda self: lambda: None)


def masks_behind_drafts_are_those_before(patch):
    fill = ScriptedGrammars.fill

    def mutant(self, rows, masks):
        errors = fill(self, rows, masks)
        for row, _ in rows:
            masks[row + 1 :] = masks[row]
        return errors

    patch.setattr(ScriptedGrammars, "fill", mutant)
    patch.setattr(constraints, "_goes_on", lambda walk, place, mask: False)


@pytest.mark.parametrize("mutate", [masks_stay_behind_drafts, masks_behind_drafts_are_those_before])
def test_masks_of_another_place_are_noticed(mutate, monkeypatch):
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        test_rows_of_a_form_have_drafts({"logprobs": 0})
