"""A recording replays to the same tokens, wherever the ring began; and what is not the same is told."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.config.windows import most_pages
from jaxserve.errors import ConfigError
from jaxserve.metrics.turn import ExecutorCounts
from jaxserve.record.dump import read_dump
from jaxserve.record.recording import RecordedStep
from jaxserve.record.replay import Difference
from jaxserve.step.plan import StepResult
from tests.support.hash_executor import next_token, seen
from tests.support.plans import copied, swapped_in, swapped_out
from tests.unit.record.support import BUDGET, MAX_LEN, PAGE, ROWS, Engine, StatefulExecutor, fresh, replayed, request, same

PARAMS: tuple[dict[str, Any], ...] = ({}, {"presence_penalty": 1.0}, {"logit_bias": {3: 2.0}}, {"allowed_token_ids": (1, 2)})


def run(engine, requests, steps, aborts=()):
    """Add requests one a step, abort some, and stop after so many steps or when the engine dies."""
    waiting = list(requests)
    for step in range(steps):
        if waiting:
            engine.core.add(waiting.pop(0))
        engine.core.abort(aborts[step : step + 1])
        if engine.core.has_work:
            engine.core.step()
        engine.core.scheduler.check()


@st.composite
def workloads(draw):
    """Requests of one to three sequences that share prefixes; ids are used again."""
    requests = []
    for index in range(draw(st.integers(3, 9))):
        shared = draw(st.integers(0, 24))
        own = draw(st.lists(st.integers(0, 40), min_size=1, max_size=8))
        prompt = [7] * shared + own
        params = draw(st.sampled_from(PARAMS))
        limit = draw(st.integers(1, MAX_LEN - len(prompt)))
        names = [f"{index}-{n}" for n in range(draw(st.integers(1, 3)))]
        parents = [None, *names[:1] * 2]
        requests.append([request(name, prompt, limit, parent, **params) for name, parent in zip(names, parents, strict=False)])
    return requests


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    requests=workloads(),
    steps=st.integers(3, 40),
    capacity=st.integers(1, 12),
    num_pages=st.integers(11, 24),
    overlap=st.booleans(),
    swap_slots=st.sampled_from([0, 6]),
    aborts=st.lists(st.sampled_from(["0-0", "1-0", "2-1", "3-0"]), max_size=20),
    windows=st.sampled_from([(None,), (None,), (6,), (1,), (None, 9), (5, 11)]),
)
def test_replay_is_equal_from_wherever_the_ring_began(requests, steps, capacity, num_pages, overlap, swap_slots, aborts, windows):
    num_pages = max(num_pages, 1 + sum(most_pages(window, MAX_LEN, PAGE, BUDGET) for window in windows))
    engine = Engine(capacity=capacity, num_pages=num_pages, overlap=overlap, swap_slots=swap_slots, windows=windows)
    run(engine, requests, steps, aborts)
    recording = engine.recording()
    result = replayed(recording, fresh(recording))
    assert [step.plan for step in result] == [step.plan for step in recording.steps]
    assert not any(step.differences or step.error for step in result)
    sampled = sum(int(step.plan.samples.sum()) for step in recording.steps if step.result is not None)
    assert sum(step.num_compared for step in result) == sampled


SHARED = [[request(f"{name}-{n}", [*[7] * 9, name], 25, **PARAMS[name]) for n in range(3)] for name in range(3)]


def busy(capacity):
    """An engine after many steps of preemptions and prefix hits; its recording begins in mid-stream."""
    engine = Engine(capacity=capacity, num_pages=14)
    run(engine, SHARED, 24)
    return engine


def test_the_workload_preempts_and_hits():
    engine = busy(6)
    assert engine.core.scheduler.num_preemptions > 0
    assert engine.core.scheduler.cache.hit_tokens > 0
    assert int((engine.recording().steps[0].plan.kv_length).max()) > 12


def test_prefixes_are_rebuilt_once_and_only_where_they_are_needed():
    recording = busy(6).recording()
    executor = fresh(recording)
    replayed(recording, executor)
    running = recording.steps[0].plan
    rebuilt = int((running.kv_length - np.diff(running.query_start)).sum())
    plans = [plan for plan in executor.plans if plan.num_rows == 1 and not plan.samples.any()]
    assert 0 < sum(plan.num_tokens for plan in plans) <= rebuilt
    whole = busy(1000).recording()
    executor = fresh(whole)
    replayed(whole, executor)
    # It began with the engine: there is nothing to rebuild, and tokens on the device stay there.
    assert all(same(ran, step.plan) for ran, step in zip(executor.plans, whole.steps, strict=True))


def test_long_prefixes_are_rebuilt_in_chunks():
    recording = busy(3).recording()
    assert max(step.plan.kv_length.max() for step in recording.steps) > 2 * BUDGET
    executor = fresh(recording)
    assert not any(step.differences for step in replayed(recording, executor))
    assert max(plan.num_tokens for plan in executor.plans) == BUDGET


def test_a_token_that_was_not_valid_is_unknown_and_what_came_of_it_is_not_compared():
    engine = Engine(capacity=2)
    engine.executor.poison = 49
    run(engine, [[request("a", [1, 49, 3]), request("b", [4, 5])]], 3)
    recording = engine.recording()
    assert [step.plan.ids for step in recording.steps] == [("a", "b"), ("b",)]
    assert [len(sequence.tokens) - len(sequence.request.prompt) for sequence in recording.sequences] == [0, 2]
    result = replayed(recording, fresh(recording))
    assert [step.num_compared for step in result] == [1, 0]
    assert not any(step.differences for step in result)


def rows(step, *given, **moves):
    """A plan of sampling rows: tokens, position of the first, pages; the rest is that of a plan that an engine made."""
    engine = Engine()
    run(engine, [[request(name, [1, 2]) for name in ("a", "b")[: len(given)]]], 1)
    tokens, starts, pages = zip(*given, strict=True)
    counts = [len(row) for row in tokens]
    width = max(map(len, pages))
    return replace(
        engine.executor.plans[0],
        step=step,
        tokens=np.concatenate(tokens).astype(np.int32),
        query_start=np.cumsum([0, *counts]).astype(np.int32),
        kv_length=np.add(starts, counts).astype(np.int32),
        page_table=np.array([row + [0] * (width - len(row)) for row in pages], np.int32),
        **moves,
    )


def one_row(step, tokens, start, pages, **moves):
    return rows(step, (tokens, start, pages), **moves)


def hand_made(*steps, swap_slots=0, windows=(None,)):
    """A recording of plans and their rows' results; every sequence's tokens are 20, 21, 22, ..."""
    engine = Engine(swap_slots=swap_slots, windows=windows)
    run(engine, [[request("a", [1, 2, 3])]], 1)
    recording = engine.recording()
    sequence = replace(recording.sequences[0], tokens=np.arange(20, 40, dtype=np.int32))
    parts = [
        RecordedStep(plan, tuple(range(plan.num_rows)), StepResult.of_rows(plan, np.array(tokens, np.int32)), 0.25)
        for plan, *tokens in steps
    ]
    return replace(recording, sequences=(sequence, sequence), steps=tuple(parts))


def after(count, windows=(None,)):
    """What the executor says after the sequence's first tokens."""
    return next_token(seen(list(range(20, 20 + count)), windows))


def test_what_windows_gave_back_is_rebuilt_in_spare_pages():
    """The keys of the last tokens were computed from keys that nobody holds; those that are there are not computed again."""
    windows = (4,)
    steps = [
        (one_row(7, [32], 12, [0, 0, 5, 6]), after(13, windows)),
        (one_row(8, [34], 14, [0, 0, 5, 9]), after(15, windows)),
    ]
    recording = hand_made(*steps, windows=windows)
    executor = fresh(recording)
    assert not any(step.differences or step.error for step in replayed(recording, executor))
    rebuilt = [(plan.num_tokens, int(plan.kv_length[0])) for plan in executor.plans if not plan.samples.any()]
    assert rebuilt == [(9, 9), (3, 12), (2, 14)]
    spare = range(recording.header.capabilities.num_pages, len(executor.pages))
    table = executor.plans[0].page_table[0]
    assert set(table[:2].tolist()) <= set(spare)
    assert table[0] != table[1], "both are seen by one token"
    assert table[2:].tolist() == [5, 6]


def test_spare_pages_must_be_there():
    recording = hand_made((one_row(7, [32], 12, [0, 0, 5, 6]), after(13, (4,))), windows=(4,))
    with pytest.raises(ConfigError, match="the recording needs num_pages of 25, the executor has 21"):
        replayed(recording, StatefulExecutor(21, PAGE, ROWS, MAX_LEN, windows=(4,)))
    with pytest.raises(ConfigError, match=r"layers with windows of \(4,\) tokens, the executor of \(None,\)"):
        replayed(recording, StatefulExecutor(25, PAGE, ROWS, MAX_LEN))


def test_rows_must_have_the_same_options():
    recording = hand_made((one_row(7, [32], 12, [3, 4, 5, 6]), after(13)))
    had = replace(recording.header.capabilities, row_options=("temperature", "mystery"))
    recording = replace(recording, header=replace(recording.header, capabilities=had))
    with pytest.raises(ConfigError, match="rows with the options temperature, mystery, the executor with temperature, top_k"):
        replayed(recording, StatefulExecutor(25, PAGE, ROWS, MAX_LEN))


@pytest.mark.parametrize("moved", ["swapped", "copied"])
def test_pages_that_moved_before_they_were_rebuilt_are_rebuilt_where_they_went(moved):
    moves = swapped_in((3, 5)) if moved == "swapped" else copied((9, 5))
    steps = [(one_row(7, [26], 6, [4, 5], moves=moves), after(7)), (one_row(8, [27], 7, [4, 5]), after(8))]
    recording = hand_made(*steps, swap_slots=4)
    executor = fresh(recording)
    assert not any(step.differences for step in replayed(recording, executor))
    assert [plan.num_tokens for plan in executor.plans] == [6, 1, 1]
    assert not any(plan.moves for plan in executor.plans)


def test_pages_that_moved_after_they_were_rebuilt_are_not_rebuilt_again():
    steps = [
        (one_row(7, [26], 6, [4, 5]), after(7)),
        (one_row(8, [27], 7, [4, 6], moves=swapped_out((4, 2), (5, 1)) + copied((5, 6))), after(8)),
        (one_row(9, [27], 7, [7, 8], moves=swapped_in((2, 7), (1, 8))), after(8)),
    ]
    recording = hand_made(*steps, swap_slots=4)
    executor = fresh(recording)
    assert not any(step.differences for step in replayed(recording, executor))
    assert [plan.num_tokens for plan in executor.plans] == [6, 1, 1, 1]


def test_pages_that_another_row_writes_in_the_same_step_are_left_to_it():
    plan = rows(7, ([20, 21, 22, 23, 24], 0, [4, 5]), ([24], 4, [4, 6]))
    recording = hand_made((plan, after(5), after(5)))
    executor = fresh(recording)
    assert not any(step.differences for step in replayed(recording, executor))
    assert len(executor.plans) == 1


def test_a_page_is_rebuilt_after_one_before_it_that_another_row_is_still_filling():
    plan = rows(7, ([22, 23, 24], 2, [4, 5]), ([28], 8, [4, 9, 6]))
    recording = hand_made((plan, after(5), after(9)))
    executor = fresh(recording)
    assert not any(step.differences for step in replayed(recording, executor))
    assert [plan.num_tokens for plan in executor.plans] == [2, 8, 4]


def test_only_missing_pages_are_rebuilt():
    steps = [
        (one_row(7, [24, 25, 26, 27], 4, [4, 5]), after(8)),
        (one_row(8, [32], 12, [4, 5, 6, 7]), after(13)),
        (one_row(9, [32], 12, [4, 8, 6, 7]), after(13)),
    ]
    recording = hand_made(*steps)
    executor = fresh(recording)
    assert not any(step.differences for step in replayed(recording, executor))
    rebuilt = [(plan.num_tokens, int(plan.kv_length[0])) for plan in executor.plans if not plan.samples.any()]
    assert rebuilt == [(4, 4), (4, 12), (4, 8)]


def test_pages_that_were_moved_away_before_they_were_rebuilt_are_rebuilt_where_they_come_back():
    steps = [
        (one_row(7, [20], 0, [4]), after(1)),
        (one_row(8, [21], 1, [4], moves=swapped_out((5, 2), (9, 1))), after(2)),
        (one_row(9, [26], 6, [7, 8], moves=swapped_in((2, 7), (1, 8))), after(7)),
    ]
    recording = hand_made(*steps, swap_slots=4)
    executor = fresh(recording)
    assert not any(step.differences for step in replayed(recording, executor))
    assert [plan.num_tokens for plan in executor.plans] == [1, 1, 6, 1]


def test_a_page_is_moved_away_before_its_new_owner_is_rebuilt_in_it():
    steps = [
        (one_row(7, [20, 21, 22, 23], 0, [4]), after(4)),
        (one_row(8, [26], 6, [9, 4], moves=swapped_out((4, 3)) + swapped_in((1, 9), (2, 4))), after(7)),
        (one_row(9, [24], 4, [6, 7], moves=swapped_in((3, 6))), after(5)),
    ]
    recording = hand_made(*steps, swap_slots=4)
    executor = fresh(recording)
    assert not any(step.differences for step in replayed(recording, executor))
    assert [plan.moves for plan in executor.plans] == [(), swapped_out((4, 3)), (), swapped_in((3, 6))]


def tampered(recording, index, row):
    step = recording.steps[index]
    tokens = step.result.tokens.copy()
    tokens[row] += 1
    steps = list(recording.steps)
    steps[index] = replace(step, result=replace(step.result, tokens=tokens))
    return replace(recording, steps=tuple(steps))


def test_a_changed_token_is_told_with_its_place():
    recording = busy(8).recording()
    index = 5
    step = recording.steps[index]
    row = int(np.flatnonzero(step.plan.samples)[-1])
    result = replayed(tampered(recording, index, row), fresh(recording))
    assert [bool(step.differences) for step in result] == [place == index for place in range(len(result))]
    token = int(step.result.tokens[row, 0])
    assert result[index].differences == (Difference(step.plan.ids[row], int(step.plan.kv_length[row]), token + 1, token),)


def test_tokens_of_rows_that_choose_none_are_not_compared():
    engine = Engine(capacity=4)
    run(engine, [[request("a", range(30))]], 3)
    recording = engine.recording()
    assert not recording.steps[0].plan.samples.any()
    assert not any(step.differences for step in replayed(tampered(recording, 0, 0), fresh(recording)))


def test_a_crash_is_written_and_replayed_to_its_last_step(tmp_path):
    engine = Engine(capacity=6, fails_at=11, directory=tmp_path)
    with pytest.raises(RuntimeError, match="gone"):
        run(engine, SHARED, 24)
    (path,) = tmp_path.iterdir()
    recording = read_dump(path)
    assert recording.reason.endswith("RuntimeError: the device is gone\n")
    assert [step.plan.step for step in recording.steps] == [6, 7, 8, 9, 10, 11]
    assert [step.result is None for step in recording.steps] == [False] * 4 + [True] * 2
    healthy = replayed(recording, fresh(recording))
    assert len(healthy) == 6
    assert not any(step.differences or step.error for step in healthy)
    assert [step.num_compared > 0 for step in healthy] == [True] * 4 + [False] * 2
    again = replayed(recording, fresh(recording, fails_at=9))
    assert [step.plan.step for step in again] == [6, 7, 8, 9]
    assert isinstance(again[-1].error, RuntimeError)


def test_an_executor_without_values_gets_the_plans_and_nothing_else():
    recording = busy(4).recording()
    executor = Blind(recording)
    result = replayed(recording, executor, compare=False)
    assert executor.plans == [step.plan for step in recording.steps]
    assert sum(step.num_compared for step in result) == 0
    assert [step.recorded_seconds for step in result] == [0.25, 0.25, 0.25, None]


class Blind:
    """Takes plans and gives nothing back."""

    def __init__(self, recording):
        self.recording = recording
        self.plans = []

    def capabilities(self):
        return self.recording.header.capabilities

    def counts(self):
        return ExecutorCounts()

    def submit(self, plan):
        self.plans.append(plan)
        return self

    def result(self):
        return None


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((13, PAGE, ROWS, MAX_LEN), "num_pages of 14, the executor has 13"),
        ((14, 8, ROWS, MAX_LEN), "pages of 4 tokens, the executor of 8"),
        ((14, PAGE, 3, MAX_LEN), "max_num_seqs of 4, the executor has 3"),
        ((14, PAGE, ROWS, 39), "max_model_len of 40, the executor has 39"),
    ],
)
def test_an_executor_that_is_too_small_is_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        replayed(busy(4).recording(), StatefulExecutor(*sizes))


def test_an_executor_without_swap_space_is_refused_only_if_pages_were_swapped():
    recording = busy(2).recording()
    limits = replace(recording.header.capabilities, swap_slots=4)
    recording = replace(recording, header=replace(recording.header, capabilities=limits))
    executor = fresh(busy(2).recording())
    assert len(replayed(recording, executor)) == 2
    swapped = replace(recording.steps[0], plan=replace(recording.steps[0].plan, moves=swapped_out((1, 0))))
    with pytest.raises(ConfigError, match="swap_slots of 4, the executor has 0"):
        replayed(replace(recording, steps=(swapped,)), executor)


def test_guesses_of_a_draft_model_are_not_compared():
    engine = Engine(guesses=3)
    run(engine, [[request("a", [1, 2, 3], 20)]], 12)
    recording = engine.recording()
    assert any(step.plan.guesses for step in recording.steps)
    with pytest.raises(ConfigError, match="guesses of a draft model"):
        replayed(recording, fresh(recording))
