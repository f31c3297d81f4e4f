"""What replicas say, added up to one sample."""

from __future__ import annotations

import math

import msgspec
import pytest

from jaxserve.routing.demand import Demand, fleet_sample


def test_a_sample_is_the_sum() -> None:
    sample = fleet_sample(
        7.0, [Demand(100.0, 40.0, 3.0, 1.0), Demand(300.0, 60.0, 5.0, 1.0)], ready=3, starting=2, draining=1, least=4
    )
    assert (sample.time, sample.ready, sample.starting, sample.draining, sample.least) == (7.0, 3, 2, 1, 4)
    assert (sample.work, sample.prefill_share, sample.violations) == (400.0, 0.25, 0.25)


def test_an_idle_fleet_has_no_work_and_breaks_no_promise() -> None:
    sample = fleet_sample(0.0, [Demand()], ready=1)
    assert (sample.work, sample.prefill_share, sample.violations) == (0.0, 0.0, 0.0)


def test_where_nobody_says_anything_no_work_is_known() -> None:
    assert math.isnan(fleet_sample(0.0, [], ready=2).work)
    assert math.isnan(fleet_sample(0.0, [Demand(math.nan)], ready=2).work)


@pytest.mark.parametrize(
    "demand",
    [
        Demand(math.nan),
        Demand(-1.0),
        Demand(math.inf),
        Demand(1.0, 2.0),
        Demand(1.0, math.nan),
        Demand(1.0, 0.0, 1.0, 2.0),
        Demand(1.0, 0.0, -1.0, 0.0),
    ],
)
def test_who_says_what_cannot_be_says_nothing(demand: Demand) -> None:
    assert not demand.is_sound
    assert fleet_sample(0.0, [demand, Demand(5.0, 1.0)], ready=2) == fleet_sample(0.0, [Demand(5.0, 1.0)], ready=2)


def test_it_is_sent_as_an_array() -> None:
    demand = Demand(1.0, 0.5, 2.0, 1.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(demand), type=Demand | None) == demand
