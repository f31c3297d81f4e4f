"""LeastLoaded sends requests where the fewest are."""

from __future__ import annotations

from jaxserve.routing.least_loaded import LeastLoaded
from jaxserve.routing.router import ReplicaLoad, Router, RoutingRequest


def request(name: str) -> RoutingRequest:
    return RoutingRequest(id=name, pages=(), page_size=16, tokens=8, output_tokens=8)


def test_requests_go_where_the_fewest_are() -> None:
    router: Router = LeastLoaded()
    router.join("a")
    router.join("b")
    assert [router.choose(request(name), 0.0) for name in "1234"] == ["a", "b", "a", "b"]
    router.ended("2", 1.0)
    router.ended("2", 1.0)  # again: nothing is counted twice
    router.observe("a", ReplicaLoad(running=9), 1.0)
    router.started("1", 1.0)
    assert router.choose(request("5"), 1.0) == "b"


def test_a_replica_twice_as_fast_has_twice_as_many() -> None:
    router = LeastLoaded()
    router.join("slow")
    router.join("fast", weight=2.0)
    chosen = [router.choose(request(str(number)), 0.0) for number in range(9)]
    assert (chosen.count("slow"), chosen.count("fast")) == (3, 6)


def test_a_replica_that_left_or_is_excluded_gets_nothing() -> None:
    router = LeastLoaded()
    router.join("a")
    router.join("b")
    assert router.choose(request("1"), 0.0, excluded=("a",)) == "b"
    router.leave("b")
    router.leave("b")
    router.ended("1", 0.0)
    assert router.choose(request("2"), 0.0, excluded=("a",)) is None
    assert router.choose(request("2"), 0.0) == "a"
