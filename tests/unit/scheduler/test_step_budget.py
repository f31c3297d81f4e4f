"""Sizes of steps from what steps cost, and batch decodes that give way to interactive prompts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.scheduler.step_budget import FRESH, StepBudget, StepCosts
from tests.support.bench import BATCH, Bench, request

POWERS = tuple(2**exponent for exponent in range(10))

# Costs


def test_a_size_costs_what_was_measured_for_its_power_of_two():
    costs = StepCosts(POWERS)
    costs.observe(33, 0.5)
    assert [costs.seconds(size) for size in (33, 48, 64)] == [0.5] * 3


def test_newer_measurements_weigh_a_fifth():
    costs = StepCosts(POWERS)
    costs.observe(64, 1.0)
    costs.observe(64, 1.5)
    assert costs.seconds(64) == pytest.approx(1.1)


def test_a_pause_of_the_machine_is_no_trend():
    costs = StepCosts(POWERS)
    costs.observe(64, 1.0)
    costs.observe(64, 100.0)
    assert costs.seconds(64) == pytest.approx(1.2)


def test_a_machine_that_became_slower_is_noticed():
    costs = StepCosts(POWERS)
    costs.observe(64, 0.01)
    for _ in range(60):
        costs.observe(64, 0.1)
    assert costs.seconds(64) == pytest.approx(0.1, rel=0.01)


def test_sizes_not_measured_lie_on_a_line_through_smaller_ones():
    costs = StepCosts(POWERS)
    assert costs.seconds(64) == 0.0
    costs.observe(64, 1.0)
    assert costs.seconds(256) == 4.0, "through nothing"
    costs.observe(128, 1.5)
    assert costs.seconds(512) == pytest.approx(1.5 + 384 * 0.5 / 64)
    assert costs.seconds(16) == 0.25, "no smaller one is known: a line through nothing"


def test_sizes_between_those_measured_lie_on_a_line_through_them():
    costs = StepCosts(POWERS)
    for size, seconds in ((16, 0.4), (32, 0.5), (256, 1.2)):
        costs.observe(size, seconds)
    assert [costs.seconds(size) for size in (64, 128)] == pytest.approx([0.6, 0.8])


def test_a_first_measurement_counts_as_at_most_twice_what_was_expected():
    costs = StepCosts(POWERS)
    costs.observe(128, 1.0)
    costs.observe(256, 100.0)
    assert costs.seconds(256) == 4.0


def test_steps_are_measured_as_the_size_they_are_computed_as():
    costs = StepCosts((24, 48, 100))
    costs.observe(25, 0.5)
    assert [costs.seconds(size) for size in (25, 48)] == [0.5] * 2
    assert [costs.seconds(size) for size in (24, 100, 101)] == pytest.approx([0.25, 100 / 96, 100 / 96])


@pytest.mark.parametrize(
    ("size", "seconds", "others"),
    [
        (128, 0.25, {32: 0.25, 64: 0.25, 256: 0.8, 512: 0.8}),
        (64, 0.05, {32: 0.05, 256: 0.4, 512: 0.8}),
        (256, 3.2, {32: 0.3, 64: 0.6, 512: 3.2}),
    ],
    ids=["a smaller one no more", "a larger one no more a token", "a larger one no less"],
)
def test_the_newest_measurement_holds_against_what_is_known_of_other_sizes(size, seconds, others):
    costs = StepCosts(POWERS)
    known = {32: 0.3, 64: 0.6, 256: 0.8, 512: 0.8}
    for one, took in known.items():
        costs.observe(one, took)
    for _ in range(60):
        costs.observe(size, seconds)
    assert {one: costs.seconds(one) for one in others} == pytest.approx(others, rel=1e-3)


def test_a_smaller_one_takes_no_less_a_token():
    costs = StepCosts(POWERS)
    for size in (64, 256):
        costs.observe(size, 0.05)
    for _ in range(60):
        costs.observe(256, 0.8)
    assert costs.seconds(64) == pytest.approx(0.1, rel=1e-3)


def test_old_measurements_are_forgotten():
    costs = StepCosts(POWERS)
    costs.observe(128, 1.5)
    for _ in range(FRESH):
        costs.observe(64, 1.0)
    assert costs.seconds(128) == 2.0, "a line through nothing"
    costs.observe(32, 0.9)
    assert costs.seconds(128) == pytest.approx(1.2), "a line through two"


def test_costs_never_fall_with_size_and_no_line_does():
    """Three short requests a second once made the engine believe that steps take less than no time, and serve one row a step."""
    costs = StepCosts(POWERS)
    costs.observe(1, 0.002)
    costs.observe(2, 0.001)
    assert [costs.seconds(size) for size in (1, 2, 4, 512)] == pytest.approx([0.001, 0.001, 0.001, 0.001], rel=0.3)
    for _ in range(5000):
        costs.observe(4, 0.0012)
    assert costs.seconds(4) == pytest.approx(0.0012, rel=1e-3)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 0.0])
def test_a_time_that_is_none_is_no_measurement(seconds):
    costs = StepCosts(POWERS)
    costs.observe(8, seconds)
    costs.observe(8, 0.05)
    costs.observe(8, seconds)
    assert costs.seconds(8) == 0.05


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(allow_nan=True, allow_infinity=True)), max_size=200))
def test_costs_are_finite_positive_and_grow_with_size_whatever_is_measured(measurements):
    costs = StepCosts(POWERS)
    for size, seconds in measurements:
        costs.observe(size, seconds)
    known = [costs.seconds(size) for size in range(1, 600)]
    assert all(math.isfinite(seconds) and seconds >= 0.0 for seconds in known)
    assert known == sorted(known)
    if any(math.isfinite(seconds) and seconds > 0.0 for _, seconds in measurements):
        assert known[0] > 0.0
        assert 0.0 < costs.fastest <= known[-1]


# Sizes


def measured(*, fixed, a_token, target, max_tokens=512, max_rows=32):
    """A budget that saw every size of a machine that needs so many seconds a step and a token."""
    budget = StepBudget(max_tokens, max_rows, target)
    size = 1
    while size <= max_tokens:
        budget.observe(1, size, fixed + a_token * size)
        if size <= max_rows:
            budget.observe(size, size, fixed + a_token * size)
        size *= 2
    return budget


DEEP = 4 * 512


@pytest.mark.parametrize(
    ("target", "size"),
    [(0.0, 512), (1.0, 512), (0.200, 128), (0.300, 256), (0.050, 32)],
    ids=["no promise", "all of it", "a quarter", "a half", "no less than a sixteenth"],
)
def test_steps_beside_decodes_keep_the_target(target, size):
    """10 ms a step and 1 ms a token."""
    assert measured(fixed=0.01, a_token=0.001, target=target).budget(0, DEEP) == size


def test_half_of_the_target_while_no_prompt_waits_and_all_of_it_while_many_do():
    budget = measured(fixed=0.0, a_token=0.001, target=0.256)
    assert [budget.budget(0, waiting) for waiting in (0, 2047, 2048)] == [128, 128, 256]


def test_steps_grow_with_what_waits_beyond_that():
    budget = measured(fixed=0.0, a_token=0.001, target=0.128)
    assert [budget.budget(0, waiting) for waiting in (2048, 4095, 4096, 8192)] == [128, 128, 256, 512]


def test_prompts_go_on_beside_any_number_of_decodes():
    budget = measured(fixed=0.0, a_token=0.001, target=0.020)
    assert [budget.budget(decodes, 0) for decodes in (16, 17, 30, 48, 49)] == [32, 64, 64, 64, 128]


def test_a_step_is_never_larger_than_the_budget():
    assert measured(fixed=0.0, a_token=0.0, target=1.0, max_tokens=40).budget(32, DEEP) == 40
    assert StepBudget(8, 8, 0.05).budget(8, DEEP) == 8
    budget = StepBudget(40, 40, 0.05)
    budget.observe(1, 40, 9.0)
    assert budget.budget(40, DEEP) == 40, "decodes are always in it"


def test_sizes_that_are_no_power_of_two():
    budget = measured(fixed=0.0, a_token=0.001, target=0.3, max_tokens=500, max_rows=30)
    budget.observe(1, 500, 0.5)
    assert budget.budget(0, DEEP) == 256
    assert budget.max_decodes() == 30


@pytest.mark.parametrize(("target", "rows"), [(0.0, 32), (0.040, 32), (0.020, 16), (0.011, 8)])
def test_rows_that_decode_keep_the_target(target, rows):
    assert measured(fixed=0.002, a_token=0.001, target=target).max_decodes() == rows


def test_a_target_out_of_reach_is_four_times_the_fastest_step():
    """A step of one row takes 104 ms: 50 ms would leave one row, and prompts the least they can get."""
    budget = measured(fixed=0.1, a_token=0.004, target=0.050)
    assert budget.max_decodes() == 32, "228 ms"
    assert measured(fixed=0.1, a_token=0.012, target=0.050).max_decodes() == 28, "436 ms; 32 rows take 484, four times a row 448"
    assert budget.budget(0, DEEP) == 64, "416 ms"
    assert measured(fixed=0.1, a_token=0.004, target=0.210).max_decodes() == 24, "196 ms: this target is not out of reach"


@pytest.mark.parametrize(("decodes", "size", "with_batch"), [(1, 32, 32), (8, 128, 32), (16, 128, 32), (32, 256, 64)])
def test_interactive_prompts_get_twice_the_time_of_the_decodes_whatever_was_promised(decodes, size, with_batch):
    """A step of 16 rows takes 42 ms, and one with 112 prompt tokens besides 74: they get it, though 50 were promised."""
    budget = StepBudget(512, 32, 0.050)
    for rows in POWERS[:6]:
        budget.observe(rows, rows, 0.010 + 0.002 * rows)
        budget.observe(1, 16 * rows, 0.010 + 0.0005 * 16 * rows)
    assert (budget.budget(decodes, 1), budget.budget(decodes, 0)) == (size, with_batch)


def test_decodes_never_measured_alone_take_what_a_step_of_their_size_would():
    budget = StepBudget(512, 32, 0.050)
    budget.observe(1, 64, 0.128)
    assert budget.budget(32, 1) == 64, "32 tokens of it are 64 ms: with three times that 96 tokens are allowed"
    assert budget.budget(32, 0) == 64


def test_before_anything_was_measured_steps_are_whole():
    budget = StepBudget(512, 32, 0.05)
    assert (budget.budget(4, 0), budget.max_decodes(), budget.prefill_seconds(100)) == (512, 32, 0.0)


def test_a_prompt_takes_its_part_of_full_steps():
    assert measured(fixed=0.088, a_token=0.001, target=0.0).prefill_seconds(1024) == pytest.approx(1.2)


def test_sizes_that_were_too_slow_once_are_tried_again():
    budget = measured(fixed=0.0, a_token=0.001, target=0.256)
    for _ in range(60):  # the machine was slow for a while
        for size in (32, 64, 128):
            budget.observe(1, size, 0.01 * size)
    assert budget.budget(0, DEEP) == 32
    for _ in range(20):
        budget.observe(1, 32, 0.032)
    assert budget.budget(0, DEEP) == 64


def test_rows_that_wait_are_tried_where_steps_are_shorter_than_they_may_be():
    """What was learned says that one row is all; steps say that they take a tenth of the time."""
    budget = StepBudget(512, 32, 0.080)
    for count in (1, 2, 3):
        budget.observe(count, count, 0.04 * count)
    assert budget.max_decodes() == 2
    rows = [2]
    for _ in range(9):
        budget.observe(rows[-1], rows[-1], 0.005, rows_held=True)
        rows.append(budget.max_decodes())
    assert rows[1] > 2
    assert rows[-1] >= 12


def test_rows_that_were_too_slow_three_times_are_left_alone_for_a_while():
    """10 ms a row, and 35 promised: a fourth row is tried three times, and once in 500 steps after that."""
    budget = StepBudget(512, 8, 0.035)
    budget.observe(1, 1, 0.010)
    tried = []
    for step in range(1200):
        rows = min(budget.max_decodes(), 8)
        tried += [step] if rows > 3 else []
        budget.observe(rows, rows, 0.010 * rows, rows_held=True)
    assert len(tried) <= 12
    assert tried[-1] > 500, "it is tried again"


@pytest.mark.parametrize("hold", [True, False])
def test_steps_get_no_larger_than_what_was_learned_unless_something_waits(hold):
    budget = measured(fixed=0.0, a_token=0.001, target=0.256)
    learned = budget.budget(8, 0)
    budget.observe(8, learned, 0.001, allowed=budget.allowed(8, 0), tokens_held=hold)
    assert (budget.budget(8, 0) > learned) is hold
    assert (budget.num_raised > 0) is hold


# Through the scheduler


def decoding(**settings):
    """A bench with an interactive sequence that decodes, whose steps took 10 ms and 1 ms a token."""
    bench = Bench(budget=128, itl_target_ms=80.0, prefix_caching=False, **settings)
    bench.add(request("a", 2, 100))
    for size in (128, 64, 32, 16):
        bench.scheduler._step_budget.observe(1, size, 0.01 + 0.001 * size)
    bench.step(0.012)
    bench.step(0.011)
    return bench


def test_a_prompt_beside_an_interactive_decode_takes_what_the_target_leaves():
    bench = decoding()
    bench.add(request("b", 300))
    assert bench.rows() == {"a": 1, "b": 31}, "half of the target, for few prompts wait"
    bench.add(*(request(f"c{number}", 300) for number in range(2)))
    assert bench.rows() == {"a": 1, "b": 63}, "all of it"


def test_a_prompt_alone_takes_the_whole_step():
    bench = decoding()
    bench.scheduler.abort(["a"])
    bench.add(request("b", 300))
    assert bench.rows() == {"b": 128}


def test_no_target_no_limit():
    bench = Bench(budget=128, itl_target_ms=0.0)
    bench.add(request("a", 2, 100))
    for size in (128, 64, 32, 16):
        bench.scheduler._step_budget.observe(1, size, 10.0)
    bench.step()
    bench.add(request("b", 300))
    assert bench.rows() == {"a": 1, "b": 127}


def test_beside_batch_decodes_prompts_take_the_whole_step():
    bench = Bench(budget=128, itl_target_ms=80.0)
    for size in (128, 64, 32, 16):
        bench.scheduler._step_budget.observe(1, size, 10.0)
    bench.add(request("b", 2, 100, service_class=BATCH))
    bench.step()
    bench.add(request("c", 300, service_class=BATCH))
    assert bench.rows() == {"b": 1, "c": 127}


def test_batch_decodes_give_way_to_interactive_prompts_for_eight_steps_in_a_row():
    bench = Bench(budget=16)
    bench.add(*(request(name, 4, 50, service_class=BATCH) for name in "bc"))
    bench.step()
    bench.add(request("a", 380))
    steps = bench.run(20)
    assert [step["a"] for step in steps] == [16] * 8 + [14] + [16] * 8 + [14] + [16] * 2
    assert all(step.keys() == {"a", "b", "c"} for step in (steps[8], steps[17]))


def test_batch_decodes_take_turns_in_the_rows_that_the_target_leaves():
    bench = Bench(max_num_seqs=8, budget=64, itl_target_ms=50.0, prefix_caching=False)
    bench.add(*(request(f"b{number}", 4, 100, service_class=BATCH) for number in range(6)))
    bench.add(request("a", 4, 100))
    bench.run(2)
    for size, seconds in ((1, 0.01), (2, 0.02), (4, 0.04), (8, 0.08)):
        bench.scheduler._step_budget.observe(size, size, seconds)
    steps = bench.run(6)
    assert all(len(step) == 5 and "a" in step for step in steps)
    turns = [name for step in steps for name in step if name != "a"]
    assert {name: turns.count(name) for name in turns} == {f"b{number}": 4 for number in range(6)}


def test_interactive_sequences_beyond_what_the_target_allows_wait():
    bench = Bench(max_num_seqs=8, budget=64, itl_target_ms=50.0)
    for size, seconds in ((1, 0.01), (2, 0.02), (4, 0.04), (8, 0.08)):
        bench.scheduler._step_budget.observe(size, size, seconds)
    bench.add(*(request(f"a{number}", 4, 100) for number in range(6)))
    bench.run(2)
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (5, 1)


def two_rows(max_num_seqs):
    """A bench whose target allows two rows beside interactive decodes."""
    bench = Bench(max_num_seqs=max_num_seqs, budget=64, itl_target_ms=50.0)
    for size, seconds in ((1, 0.02), (2, 0.04), (3, 0.06)):
        bench.scheduler._step_budget.observe(size, size, seconds)
    return bench


def test_batch_starts_only_in_rows_that_the_target_allows():
    bench = two_rows(4)
    bench.add(*(request(name, 4, 100) for name in "ac"), request("b", 4, service_class=BATCH))
    bench.run(3)
    assert "b" not in bench.tokens
    bench.scheduler.abort(["c"])
    bench.step()
    assert "b" in bench.tokens


def test_batch_makes_no_way_for_a_row_that_the_target_does_not_allow():
    bench = two_rows(3)
    bench.add(request("b", 4, 100, service_class=BATCH))
    bench.step()
    bench.add(*(request(name, 4, 100) for name in "acd"))
    bench.run(5)
    assert bench.scheduler.num_waiting == 1
    assert not bench.preemptions
