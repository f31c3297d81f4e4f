"""The operating point of a replica, and the replicas that a load needs."""

from dataclasses import replace

import pytest

from jaxserve.errors import ConfigError
from jaxserve.planner import fleet, memory, roofline
from jaxserve.planner.fleet import Load, Replica
from tests.unit.planner.support import layout

LOAD = Load(prompt=1000, output=200, users=None, requests_per_second=None, itl_s=0.05, utilisation=0.7, price_per_hour=2.5)


def plan(load: Load) -> Replica:
    place = layout()
    return fleet.replica(place, memory.ledger(place), roofline.machine(place, 0.6), load)


def test_the_batch_is_the_largest_within_the_target() -> None:
    one, place = plan(LOAD), layout()
    rates = roofline.machine(place, 0.6)
    assert one.itl_s <= 0.05
    more = roofline.decode_step(place, rates, one.batch + 1, 1100).total_s + one.prefill_s * (one.batch + 1) / 200
    assert more > 0.05
    assert one.limit.startswith("ITL target (prefill")


def test_a_loose_target_leaves_memory_as_the_limit() -> None:
    one = plan(replace(LOAD, itl_s=10.0))
    assert one.batch == one.kv_batch == memory.ledger(layout()).kv_tokens // 1200
    assert one.limit == "KV capacity"


def test_requests_and_tokens_agree() -> None:
    one = plan(LOAD)
    assert one.tokens_per_s == pytest.approx(one.batch / one.itl_s)
    assert one.requests_per_s == pytest.approx(one.tokens_per_s / 200)
    # a second holds the prompts and decode steps of the requests that it finishes
    assert one.requests_per_s * one.prefill_s + one.requests_per_s * 200 / one.batch * one.decode_s == pytest.approx(1)
    assert one.requests_per_s * one.prefill_s == pytest.approx(one.prefill_share)


def test_price() -> None:
    one = plan(LOAD)
    assert one.usd_per_m_tokens == pytest.approx(20 / 3600 / one.tokens_per_s * 1e6)
    assert one.usd_per_m_tokens_planned == pytest.approx(one.usd_per_m_tokens / 0.7)


@pytest.mark.parametrize(("users", "needed"), [(1, 1), (7, 1), (8, 2), (21, 3), (70, 10), (71, 11)])
def test_replicas_for_users(users: int, needed: int) -> None:
    one = replace(plan(LOAD), batch=10)
    assert fleet.replicas_needed(one, replace(LOAD, users=users)) == needed


@pytest.mark.parametrize(("rate", "needed"), [(0.1, 1), (14.0, 10), (14.1, 11)])
def test_replicas_for_arrivals(rate: float, needed: int) -> None:
    one = replace(plan(LOAD), requests_per_s=2.0)
    assert fleet.replicas_needed(one, replace(LOAD, requests_per_second=rate)) == needed


def test_a_fleet_serves_its_load() -> None:
    load, place = replace(LOAD, requests_per_second=100.0), layout()
    one = plan(load)
    whole = fleet.fleet(place, one, load, None)
    assert whole.replicas == whole.needed
    assert whole.requests_per_s >= 100 > (whole.replicas - 1) * one.requests_per_s * 0.7
    assert (whole.gpus, whole.usd_per_hour) == (8 * whole.replicas, 20.0 * whole.replicas)


def test_given_replicas_are_kept_even_if_too_few() -> None:
    load = replace(LOAD, users=10_000)
    whole = fleet.fleet(layout(), plan(load), load, 2)
    assert whole.replicas == 2
    assert whole.needed is not None
    assert whole.needed > 2


def test_a_target_below_the_floor_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"an ITL of 2 ms cannot be met: one request alone takes 3\.\d ms a token"):
        plan(replace(LOAD, itl_s=0.002))


def test_a_request_larger_than_the_cache_is_refused() -> None:
    place = layout("llama-3-70b", "h100", tp=2, weights="bf16")
    load = replace(LOAD, prompt=200_000)
    with pytest.raises(ConfigError, match=r"200000 \+ 200 tokens does not fit: the KV cache holds \d\d,\d{3}$"):
        fleet.replica(place, memory.ledger(place), roofline.machine(place), load)
