"""How many drafts rows get, against every way to give them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.speculation.allocation import WORTH, fastest

CHANCES = st.lists(st.lists(st.floats(0.0, 1.0), max_size=3).map(lambda one: sorted(one, reverse=True)), min_size=1, max_size=4)


@settings(deadline=None)
@given(CHANCES, st.integers(0, 3), st.integers(0, 9), st.floats(0.0, 3.0), st.floats(0.0, 2.0))
def test_no_other_step_has_more_tokens_a_second(chances, more, room, slope, gap):
    rows = len(chances) + more

    def seconds(drafts):
        return 1.0 + slope * (-(-drafts // 2)) / 4  # in stairs, as buckets are

    def rate(counts):
        total = sum(counts)
        expected = rows + sum(sum(each[:count]) for each, count in zip(chances, counts, strict=True))
        return expected / (seconds(total) + (gap if total else 0.0))

    taken = fastest(chances, rows, seconds, room=room, gap=gap)
    every = itertools.product(*(range(len(each) + 1) for each in chances))
    best = max(rate(counts) for counts in every if sum(counts) <= room)
    assert sum(taken) <= room
    if best > rows * WORTH * (1 + 1e-9):
        assert rate(taken) == pytest.approx(best)
    elif best < rows * WORTH * (1 - 1e-9):
        assert not any(taken)


def test_rows_get_as_many_as_each_deserves():
    taken = fastest([[0.9, 0.8, 0.7], [0.2, 0.1], [0.95, 0.1]], 3, lambda drafts: 1.0 + 0.15 * drafts, room=9)
    assert taken == [3, 0, 1]


def test_many_rows_on_a_busy_device_get_none():
    """Where a token costs as much as any other."""
    assert not any(fastest([[0.6, 0.4]] * 32, 32, lambda drafts: 32.0 + drafts, room=100))


def test_free_drafts_are_all_taken():
    assert fastest([[0.5, 0.25], [0.1]], 2, lambda drafts: 0.0, room=9) == [2, 1]
    assert fastest([[0.5, 0.25], [0.1]], 2, lambda drafts: 1.0, room=9) == [2, 1]


def test_a_step_without_drafts_is_measured_where_steps_with_some_are_known():
    assert fastest([[0.5, 0.25], [0.1]], 2, lambda drafts: 1.0 if drafts else 0.0, room=9) == [0, 0]


def test_no_step_is_longer_than_promised():
    assert sum(fastest([[0.9] * 8], 1, lambda drafts: 1.0 + 0.1 * drafts, room=9, limit=1.35)) == 3
    assert sum(fastest([[0.9] * 8], 1, lambda drafts: 2.0, room=9, limit=1.0)) == 8, "it is no longer than without"
