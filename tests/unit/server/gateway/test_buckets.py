"""Token buckets: exact charges, exact waits, and never more than the limit lets through."""

from hypothesis import given, settings
from hypothesis import strategies as st

from server.gateway.buckets import MINUTE, Bucket

LIMITS = st.integers(1, 10_000)


@settings(max_examples=60, deadline=None)
@given(LIMITS, st.lists(st.tuples(st.integers(0, MINUTE), st.integers(1, 5_000)), max_size=40))
def test_in_no_window_does_more_pass_than_it_held_and_got(limit: int, steps: list[tuple[int, int]]) -> None:
    bucket, now = Bucket(limit, 0), 0
    passed: list[tuple[int, int]] = []
    for seconds, units in steps:
        now += seconds
        if bucket.wait(units, now) == 0:
            bucket.take(units, now)
            passed.append((now, units))
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            total = sum(units for _, units in passed[first : last + 1])
            window = passed[last][0] - passed[first][0]
            assert total * MINUTE <= limit * (MINUTE + window)


@settings(max_examples=60, deadline=None)
@given(LIMITS, st.integers(0, 20_000), st.data())
def test_the_wait_is_exact(limit: int, taken: int, data: st.DataObject) -> None:
    units = data.draw(st.integers(1, limit))
    bucket = Bucket(limit, 0)
    bucket.take(taken, 0)
    wait = bucket.wait(units, 0)
    assert (wait == 0) == (limit - taken >= units)
    if wait:
        assert bucket.wait(units, wait - 1) > 0
    assert bucket.wait(units, wait) == 0
    assert bucket.remaining(wait) >= units


@settings(max_examples=60, deadline=None)
@given(LIMITS, st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=20))
def test_settling_leaves_what_was_used_and_nothing_else(limit: int, charges: list[tuple[int, int]]) -> None:
    bucket, used = Bucket(limit, 0), 0
    for estimate, actual in charges:
        bucket.take(estimate, 0)
        if actual <= estimate:
            bucket.give_back(estimate - actual, 0)
        else:
            bucket.take(actual - estimate, 0)
        used += actual
        assert bucket.remaining(0) == max(limit - used, 0)


def test_a_debt_is_paid_before_anything_passes() -> None:
    bucket = Bucket(60, 0)
    bucket.take(180, 0)
    assert (bucket.remaining(0), bucket.wait(1, 0)) == (0, 121_000_000)
    assert bucket.remaining(2 * MINUTE) == 0
    assert bucket.remaining(2 * MINUTE + 1_000_000) == 1


def test_it_does_not_overflow() -> None:
    bucket = Bucket(60, 0)
    bucket.take(10, 0)
    assert bucket.remaining(5 * MINUTE) == 60
    bucket.give_back(10, 5 * MINUTE)
    assert bucket.remaining(5 * MINUTE) == 60


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    bucket = Bucket(60, MINUTE)
    assert bucket.remaining(0) == 60
    bucket.take(60, MINUTE)
    assert bucket.remaining(0) == 0
    assert bucket.remaining(MINUTE) == 0
    assert bucket.remaining(MINUTE + 1_000_000) == 1


def test_a_new_limit_holds_from_now_on() -> None:
    bucket = Bucket(60, 0)
    bucket.take(30, 0)
    bucket.set_limit(600, 0)
    assert bucket.remaining(0) == 30
    assert bucket.remaining(1_000_000) == 40
    bucket.set_limit(20, 1_000_000)
    assert (bucket.limit, bucket.remaining(1_000_000)) == (20, 20)
    bucket.take(20, 1_000_000)
    bucket.set_limit(20, 4_000_000)
    assert bucket.remaining(4_000_000) == 1
