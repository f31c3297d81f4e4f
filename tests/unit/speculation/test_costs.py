"""What steps are taken to cost: whatever is measured, nothing is given up for good."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.speculation.costs import FRESH, TRUSTED, DraftCosts

SIZES = st.integers(1, 64)


def test_what_is_measured_is_known():
    costs = DraftCosts(64)
    assert costs.seconds(4, 16) == 0.0
    for _ in range(TRUSTED):
        costs.observe(4, 4, 1.0)
        costs.observe(4, 16, 3.0)
    assert (costs.seconds(4, 4), costs.seconds(4, 16)) == (1.0, 3.0)
    assert costs.seconds(4, 20) == 3.0, "no dearer than what is known to be smaller"
    assert costs.seconds(4, 8) == 1.0
    assert costs.seconds(2, 8) == 0.0


def test_one_slow_step_is_not_believed():
    """It counts as twice what a smaller one takes, so that it is measured again."""
    costs = DraftCosts(64)
    for _ in range(10):
        costs.observe(1, 1, 0.01)
    costs.observe(1, 5, 60.0)
    assert costs.seconds(1, 5) == pytest.approx(0.02)
    costs.observe(1, 1, 60.0)
    assert costs.seconds(1, 1) < 0.013


def test_measurements_are_forgotten():
    costs = DraftCosts(64)
    for _ in range(TRUSTED):
        costs.observe(1, 5, 60.0)
    for _ in range(FRESH):
        costs.observe(1, 1, 0.01)
    assert costs.seconds(1, 5) == pytest.approx(0.01)


@settings(deadline=None)
@given(st.lists(st.tuples(SIZES, SIZES, st.floats()), max_size=40), SIZES, SIZES)
def test_costs_are_finite_and_not_negative(steps, rows, tokens):
    costs = DraftCosts(64)
    for its_rows, more, seconds in steps:
        costs.observe(its_rows, its_rows + more, seconds)
    seconds = costs.seconds(rows, tokens)
    assert math.isfinite(seconds)
    assert seconds >= 0.0
