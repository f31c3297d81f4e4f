"""The swap space: slots are handed out once, and moving pages costs by the page."""

import pytest

from jaxserve.cache.swap import SwapSpace


def test_every_slot_is_handed_out_once():
    space = SwapSpace(4, 0.25)
    first, second = space.take(3), space.take(1)
    assert first is not None
    assert second is not None
    assert sorted(first + second) == [0, 1, 2, 3]
    assert space.num_free == 0
    space.give_back(first)
    assert space.num_free == 3
    assert sorted(space.take(3) or []) == sorted(first)


def test_asking_for_too_many_changes_nothing():
    space = SwapSpace(2, 0.25)
    assert space.take(3) is None
    assert space.num_free == 2
    assert space.take(0) == []


@pytest.mark.parametrize("slots", [[1], [0, 0], [9]])
def test_only_what_is_taken_is_given_back(slots):
    space = SwapSpace(2, 0.25)
    assert space.take(1) == [0]
    with pytest.raises(ValueError, match="is given back but was not taken"):
        space.give_back(slots)


def test_seconds_are_of_one_direction():
    assert SwapSpace(2, 0.25).seconds(3) == 0.75


@pytest.mark.parametrize(("slots", "seconds"), [(-1, 0.0), (1, -0.5)])
def test_numbers_below_zero_are_refused(slots, seconds):
    with pytest.raises(ValueError, match="must be at least 0"):
        SwapSpace(slots, seconds)


@pytest.mark.parametrize("holders", [[[0]], [[0, 1], [1]], [[0, 1, 2]]], ids=["lost", "twice", "free"])
def test_check_notices(holders):
    space = SwapSpace(3, 0.25)
    slots = space.take(2)
    assert slots is not None
    space.check([slots[:1], slots[1:]])
    with pytest.raises(AssertionError):
        space.check(holders)
