"""Rows that guess: whatever is guessed, a sequence gets the tokens that it gets one at a time."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.cache.kv_cache import KVCache
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.engine.core import EngineCore
from jaxserve.sampling.options import STANDARD, SUPPRESS
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.speculation.drafter import Guess
from jaxserve.speculation.speculation import Speculation
from tests.support.bench import MAX_LEN, request
from tests.support.hash_executor import HashExecutor, expected, next_token, seen

PAGE = 4


class Oracle:
    """Knows what comes next; its `wrong`th guesses are wrong."""

    def __init__(self, max_drafts, wrong=(), windows=(None,)):
        self.max_drafts = max_drafts
        self.wrong = wrong
        self.windows = windows
        self.count = itertools.count()

    def begin(self, tenant, num_prompt):
        return self

    def end(self, tokens):
        pass

    def propose(self, tokens, most):
        assert 0 < most <= self.max_drafts
        known = list(tokens)
        for _ in range(most):
            token = next_token(seen(known, self.windows))
            known.append(token + 1 if next(self.count) in self.wrong else token)
        return Guess(tuple(known[len(tokens) :]))


def engine(drafter, *, num_pages=101, rows=4, windows=(None,), budget=16):
    config = SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=budget, growth_reserve=0.0, itl_target_ms=0.0)
    cache = KVCache(num_pages, PAGE, prefix_caching=True, windows=windows, max_chunk=budget)
    executor = HashExecutor(num_pages, PAGE, rows, MAX_LEN, windows=windows)
    clock = VirtualClock()
    guessing = Speculation(drafter, drafter.max_drafts, clock, max_rows=rows, max_tokens=budget)
    return Scheduler(config, cache, MAX_LEN, clock, speculation=guessing), executor


def run(scheduler, executor, *, overlap=False):
    """Tokens of every sequence, and of each step how many tokens its rows chose."""
    core, reasons = EngineCore(scheduler, executor, overlap=overlap), {}
    tokens: dict[str, list[int | None]] = {}
    while core.has_work:
        for update in core.step():
            assert update.id not in reasons, "something is told of a sequence that ended"
            tokens.setdefault(update.id, []).append(update.token)
            if update.finish_reason is not None:
                reasons[update.id] = update.finish_reason
        scheduler.check()
    return tokens


def drafts(executor):
    return [plan.num_drafts.tolist() for plan in executor.plans]


def test_right_drafts_are_tokens():
    scheduler, executor = engine(Oracle(3))
    scheduler.add([request("a", [1, 2, 3, 4, 5], 9)])
    assert run(scheduler, executor) == {"a": expected([1, 2, 3, 4, 5], 9)}
    assert drafts(executor) == [[0], [3], [3]], "a token, then four and four"


def test_a_wrong_draft_ends_what_counts():
    scheduler, executor = engine(Oracle(3, wrong={1}))
    scheduler.add([request("a", [1, 2, 3, 4, 5], 9)])
    assert run(scheduler, executor) == {"a": expected([1, 2, 3, 4, 5], 9)}
    assert drafts(executor) == [[0], [3], [3], [1]], "a token, two, four, two"


def test_no_more_than_may_come():
    scheduler, executor = engine(Oracle(3))
    scheduler.add([request("a", [1, 2, 3], 3)])
    run(scheduler, executor)
    assert drafts(executor) == [[0], [1]]


def test_a_stop_token_ends_among_drafts():
    tokens = expected([1, 2, 3, 4, 5], 9)
    scheduler, executor = engine(Oracle(3))
    scheduler.add([request("a", [1, 2, 3, 4, 5], 9, stop_token_ids=(tokens[2],))])
    assert run(scheduler, executor) == {"a": tokens[:3]}
    assert scheduler.cache.num_free == scheduler.cache.num_usable


def test_no_row_is_on_both_sides_of_its_min_tokens():
    """Nor is the plan behind it, if all its drafts are right."""
    scheduler, executor = engine(Oracle(3))
    scheduler.add([request("a", [1, 2, 3, 4, 5], 12, min_tokens=7, stop_token_ids=(1,))])
    run(scheduler, executor)
    assert drafts(executor) == [[0], [3], [0], [0], [3], [0]], "1, 5, 6, 7, 11 and 12 tokens"
    suppressed = [STANDARD.column(plan.sampling, SUPPRESS)[0, 0] == 1 for plan in executor.plans]
    assert suppressed == [True, True, True, True, False, False]


@pytest.mark.parametrize("wrong", [{0}, {1}, {2}, ()], ids=str)
def test_the_next_step_is_planned_before_drafts_are_known(wrong):
    """The executor alone knows where the sequence is: the plan takes all drafts to be right."""
    scheduler, executor = engine(Oracle(3, wrong))
    prompt = [1, 2, 3, 4, 5]
    scheduler.add([request("a", prompt, 20)])
    tokens: list[int | None] = []

    def submitted():
        plan = scheduler.schedule()
        scheduler.check()
        return plan, executor.submit(plan)

    def collect(plan, handle):
        tokens.extend(update.token for update in scheduler.apply(plan, handle.result()))
        scheduler.check()

    collect(*submitted())
    drafted = submitted()
    behind = [submitted(), submitted()]
    assert [plan.tokens.tolist() for plan, _ in behind] == [[-1], [-1]]
    assert [plan.kv_length.tolist() for plan, _ in behind] == [[10], [11]], "nine are computed if all are right"
    for step in (drafted, *behind):
        collect(*step)
    right = min(wrong, default=3)
    assert len(tokens) == 1 + (1 + right) + 2
    while scheduler.has_work:
        collect(*submitted())
    assert tokens == expected(prompt, 20)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 14)), min_size=1, max_size=6),
    st.integers(0, 4),
    st.frozensets(st.integers(0, 60)),
    st.sampled_from([(None,), (5,), (None, 3)]),
    st.integers(14, 60),
    st.booleans(),
)
def test_tokens_do_not_depend_on_drafts(lengths, max_drafts, wrong, windows, num_pages, overlap):
    """However wrong guesses are, and with so few pages that sequences are preempted."""
    scheduler, executor = engine(Oracle(max_drafts, wrong, windows), num_pages=num_pages, windows=windows)
    prompts = {str(number): [number, *range(length)] for number, (length, _) in enumerate(lengths)}
    for (name, prompt), (_, count) in zip(prompts.items(), lengths, strict=True):
        scheduler.add([request(name, prompt, count)])
    tokens = run(scheduler, executor, overlap=overlap)
    assert tokens == {
        name: expected(prompt, count, windows=windows)
        for (name, prompt), (_, count) in zip(prompts.items(), lengths, strict=True)
    }
    assert scheduler.cache.num_free == scheduler.cache.num_usable
