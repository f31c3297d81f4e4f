"""Estimates of waits are corrected by waits, and finite whatever happens."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxserve.scheduler.estimates import MOST_CORRECTED, WaitEstimate


def measured(rate=100.0):
    estimate = WaitEstimate()
    for _ in range(50):
        estimate.observe(rate / 10, 0.1)
    return estimate


def test_an_estimate_that_is_off_by_more_than_twice_is_corrected_and_counted():
    estimate = measured()
    assert estimate.seconds(1000.0) == pytest.approx(10.0)
    for _ in range(40):
        estimate.compare(estimate.uncorrected(1000.0), 30.0)
    assert estimate.seconds(1000.0) == pytest.approx(30.0, rel=0.02)
    wrong = estimate.num_wrong
    assert 0 < wrong < 10, "once it is corrected it is right"
    estimate.compare(estimate.uncorrected(1000.0), 25.0)
    assert estimate.num_wrong == wrong


def test_waits_of_no_account_correct_nothing():
    estimate = measured()
    estimate.compare(0.1, 0.4)
    estimate.compare(0.0, 100.0)
    assert (estimate.seconds(100.0), estimate.num_wrong) == (pytest.approx(1.0), 0)


@given(
    st.lists(st.tuples(st.floats(allow_nan=True), st.floats(allow_nan=True)), max_size=50),
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(allow_nan=True)), max_size=50),
)
@example([(5.0, 5e-324)], [])
@example([(1e308, 1.0), (1e308, 1.0)], [])
@example([(5e-324, 1.0)], [])
def test_whatever_is_measured_estimates_are_finite_and_bounded(steps, waits):
    estimate = measured()
    for work, seconds in steps:
        estimate.observe(work, seconds)
    for uncorrected, waited in waits:
        estimate.compare(uncorrected, waited)
    assert math.isfinite(estimate.rate)
    plain = estimate.uncorrected(100.0)
    assert math.isfinite(plain)
    assert plain / (MOST_CORRECTED * 1.01) <= estimate.seconds(100.0) <= plain * MOST_CORRECTED * 1.01
