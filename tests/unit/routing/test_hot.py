"""Over how many replicas prefixes are spread, and where prompts part."""

from __future__ import annotations

import math

import pytest

from jaxserve.routing.branches import Branches
from jaxserve.routing.hot import HotPrefixes
from jaxserve.routing.pace import Pace
from tests.unit.routing.support import pages


def warmed(share: float, work: float = 1000.0) -> HotPrefixes:
    """Ten requests a second for ten minutes; one prefix has a share of their work."""
    hot = HotPrefixes(100, 30.0, 500.0)
    for number in range(6000):
        hot.count("t", b"hot", share * work, number / 10)
        hot.count("t", bytes([number % 50]), (1.0 - share) * work, number / 10)
    return hot


@pytest.mark.parametrize(("share", "copies"), [(0.02, 1), (0.3, 3), (0.5, 5), (0.9, 9)])
def test_copies_are_by_the_share_of_the_traffic(share: float, copies: int) -> None:
    """10,000 a second, 5 seconds each: 50,000 in flight, 5,000 a replica and a grain of 500 besides."""
    assert warmed(share).copies(b"hot", 10, 5.0) == copies == math.ceil(share * 50000 / 5500)


def test_an_idle_fleet_spreads_nothing() -> None:
    assert warmed(1.0, work=1.0).copies(b"hot", 10, 5.0) == 1


def test_nothing_is_spread_before_anything_is_known() -> None:
    assert warmed(1.0).copies(b"hot", 10, 0.0) == 1
    assert warmed(1.0).copies(b"never seen", 10, 5.0) == 1


def test_a_replica_is_not_given_up_for_a_small_gain() -> None:
    hot = warmed(0.3)
    needed = [hot.copies(b"hot", 10, residence) for residence in (5.0, 4.0, 5.0, 3.0, 5.0)]
    assert needed == [3, 3, 3, 3, 3]
    assert hot.copies(b"hot", 10, 0.2) == 1


def test_prefixes_are_bounded() -> None:
    hot = HotPrefixes(64, 30.0, 500.0)
    for number in range(1000):
        hot.count("t", number.to_bytes(4), 1.0, 0.0)
    assert len(hot) <= 64


def test_prompts_part_where_two_went_on_differently() -> None:
    branches = Branches(64)
    prompt = pages(("system", 3), ("own", 3))
    branches.parted("t", prompt[2])
    assert branches.deepest(prompt) == 0, "once may be a conversation going on"
    branches.parted("t", prompt[2])
    branches.parted("t", prompt[0])
    branches.parted("t", prompt[0])
    assert branches.deepest(prompt) == 3
    assert branches.deepest(prompt[:2]) == 1
    for number in range(1000):
        branches.parted("flood", number.to_bytes(4))
    assert len(branches) <= 64
    assert branches.deepest(prompt) == 3


def test_pace_is_learned_from_what_ended() -> None:
    pace = Pace()
    assert pace.seconds(1000.0) == 0.0
    pace.ended(1000.0, 2.0)
    assert (pace.seconds(500.0), pace.residence) == (1.0, 2.0)
    for ahead, seconds in ((0.0, 1.0), (1.0, 0.0), (float("nan"), 1.0), (1.0, float("nan"))):
        pace.ended(ahead, seconds)
    assert pace.seconds(500.0) == 1.0
    pace.ended(1000.0, 4.0)
    assert 1.0 < pace.seconds(500.0) < 2.0
