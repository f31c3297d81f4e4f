"""RandomRouter and RoundRobin, and routers by name."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest

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
