"""The bound on work in flight, held against the formula computed replica by replica."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from jaxserve.routing.bounded import BoundedWork

NONE = np.zeros(4, bool)
WEIGHTS = (1.0, 2.0, 1.0, 0.5)


def bounded(slack: float = 0.25, grain: float = 100.0, yielding: float = 0.25) -> BoundedWork:
    work = BoundedWork(slack, grain, yielding)
    for slot, weight in enumerate(WEIGHTS):
        work.join(slot, weight)
    return work


def plain_fits(loads: list[list[int]], rank: int, added: int, slot: int) -> bool:
    """loads[class][slot]."""

    def seen(by: int, at: int) -> float:
        return sum(loads[of][at] * (1.0 if of <= by else 0.25) for of in range(3))

    for by in range(rank + 1):
        part = added * (1.0 if rank <= by else 0.25)
        mean = (sum(seen(by, at) for at in range(4)) + part) * WEIGHTS[slot] / sum(WEIGHTS)
        if seen(by, slot) + part > 1.25 * mean + 100.0 * WEIGHTS[slot] + 1e-9:
            return False
    return True


def test_fits_are_those_of_the_formula() -> None:
    random = Random(0)
    seen = set()
    for _ in range(300):
        work, loads = bounded(), [[random.randrange(0, 900) for _ in range(4)] for _ in range(3)]
        for rank, row in enumerate(loads):
            for slot, load in enumerate(row):
                work.take(f"{rank} {slot}", slot, rank, load, 0)
        rank, added = random.randrange(3), random.randrange(1, 400)
        expected = [plain_fits(loads, rank, added, slot) for slot in range(4)]
        assert work.fits(rank, added, NONE).tolist() == expected
        seen |= set(expected)
    assert seen == {True, False}


def test_accounts_come_back_to_nothing() -> None:
    work = bounded()
    work.take("a", 1, 0, 70, 30)
    work.take("b", 1, 2, 5, 5)
    assert (work.work(1), work.work(0)) == (110, 0)
    work.started("a")
    work.started("a")
    assert work.work(1) == 40
    assert work.ahead(0).tolist() == [0.0, (30 + 10 / 4) / 2, 0.0, 0.0]
    assert work.ahead(2).tolist() == [0.0, 40 / 2, 0.0, 0.0]
    assert work.ahead_at(0, 1) == work.ahead(0)[1]
    assert work.ended("a")
    assert not work.ended("a")
    assert work.ended("b")
    work.started("b")
    assert work.work(1) == 0


def test_what_left_has_nothing_in_flight() -> None:
    work = bounded()
    work.take("a", 1, 0, 70, 30)
    work.take("b", 2, 0, 70, 30)
    assert work.leave(1) == {"a"}
    assert not work.ended("a")
    assert work.present.tolist() == [True, False, True, True]
    assert work.ahead(0)[1] == np.inf
    assert not work.fits(0, 1, NONE)[1]
    work.join(1, 1.0)
    assert work.ahead(0)[1] == 0.0


def test_batch_pushes_nobody_over_the_bound() -> None:
    """The interactive ones see a quarter of it; it fits only while they would still fit themselves."""
    work = bounded(grain=100.0)
    work.take("interactive", 0, 0, 95, 0)
    work.take("elsewhere", 1, 2, 4000, 0)
    assert work.fits(0, 1, NONE)[0]
    assert work.fits(2, 10, NONE)[0], "a quarter of ten"
    assert not work.fits(2, 2000, NONE)[0]


def test_a_replica_that_was_too_full_is_left_until_it_is_well_below() -> None:
    work, wanted = bounded(slack=0.0), np.array([True, False, False, False])
    for part in range(10):
        work.take(str(part), 0, 0, 10, 0)
    full = np.sum(WEIGHTS)  # 4.5: the mean of 100 is 22; with a grain of 100 the bound is 122 and a little
    assert work.fits(0, 10, wanted)[0]
    assert not work.fits(0, 60, wanted)[0]
    assert not work.fits(0, 10, NONE)[0], "now it is to recover first"
    for part in range(2):
        work.ended(str(part))
    assert not work.fits(0, 10, NONE)[0], "80 is above 80 / 4.5 + 50"
    for part in range(2, 4):
        work.ended(str(part))
    assert 60 / full + 50 > 60
    assert work.fits(0, 10, NONE)[0]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_idle_fleet_takes_a_grain_anywhere(rank: int) -> None:
    assert bounded(grain=64.0).fits(rank, 32, NONE).all()
