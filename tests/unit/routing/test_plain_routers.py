"""RandomRouter and RoundRobin, and routers by name."""

from __future__ import annotations

import math
from collections import Counter
from typing import get_args

import pytest

from jaxserve.errors import ConfigError
from jaxserve.routing.make import RouterName, make_router
from jaxserve.routing.random_router import RandomRouter
from jaxserve.routing.round_robin import RoundRobin
from jaxserve.routing.router import ReplicaLoad
from tests.unit.routing.support import request


@pytest.mark.parametrize("name", get_args(RouterName))
def test_every_router_knows_who_is_there(name: RouterName) -> None:
    router = make_router(name)
    assert router.choose(request("0", ("a", 4)), 0.0) is None
    router.leave("a")
    router.join("a")
    router.join("b")
    router.observe("a", ReplicaLoad(), 0.0)
    router.observe("c", ReplicaLoad(), 0.0)
    assert router.choose(request("1", ("a", 4)), 0.0, {"a"}) == "b"
    router.started("1", 0.0)
    router.started("2", 0.0)
    router.leave("b")
    router.ended("1", 0.0)
    assert {router.choose(request(str(number), ("a", 4)), 0.0) for number in range(2, 9)} == {"a"}
    assert router.choose(request("9", ("a", 4)), 0.0, {"a"}) is None


HOSTILE = {
    "not a number": ReplicaLoad(step_seconds=math.nan),
    "never ends": ReplicaLoad(running=2**80, waiting=2**80, pages_total=2**80, step_seconds=math.inf),
    "less than nothing": ReplicaLoad(running=-5, waiting=-(2**80), pages_total=-7, pages_free=-1, step_seconds=-1.0),
    "one page": ReplicaLoad(pages_total=1, pages_free=9),
}


@pytest.mark.parametrize("load", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("name", get_args(RouterName))
def test_whatever_a_replica_says_everybody_gets_requests(name: RouterName, load: ReplicaLoad) -> None:
    router = make_router(name)
    for replica in "abcd":
        router.join(replica)
    counts: Counter[str | None] = Counter()
    for number in range(400):
        router.observe("a", load, float(number))
        counts[router.choose(request(str(number), (f"prompt {number}", 2)), float(number))] += 1
        if number >= 8:
            router.ended(str(number - 8), float(number))
    assert counts.keys() == set("abcd")
    assert min(counts.values()) > 60


def test_the_load_bound_is_what_is_sent_home() -> None:
    """200 requests of one prompt at once: those that its home takes beyond its part of all work, and what it may always have."""

    def most(load_bound: float) -> int:
        router = make_router("prefix", load_bound)
        for replica in "abcd":
            router.join(replica)
        chosen = Counter(router.choose(request(str(number), ("a", 8), output_tokens=500), 0.0) for number in range(200))
        return max(chosen.values())

    grain = 8192 / (2 * 500)
    assert most(1.1) <= 1.1 * 50 + grain + 1
    assert most(2.0) > 1.5 * 50


@pytest.mark.parametrize("load_bound", [0.9, math.nan, math.inf])
def test_impossible_load_bounds_are_refused(load_bound: float) -> None:
    with pytest.raises(ConfigError, match="must be at least 0 and finite"):
        make_router("prefix", load_bound)


def test_turns_are_taken_by_weight_and_evenly() -> None:
    router = RoundRobin()
    router.join("a", 2.0)
    router.join("b")
    router.join("c")
    chosen = [router.choose(request(str(number)), 0.0) for number in range(8)]
    assert chosen == ["a", "b", "c", "a"] * 2


def test_lots_are_by_weight_and_the_same_for_the_same_seed() -> None:
    def chosen(seed: int) -> list[str | None]:
        router = RandomRouter(seed)
        router.join("a", 3.0)
        router.join("b")
        return [router.choose(request(str(number)), 0.0) for number in range(2000)]

    assert chosen(1) == chosen(1) != chosen(2)
    assert Counter(chosen(1))["a"] / 2000 == pytest.approx(0.75, abs=0.03)
