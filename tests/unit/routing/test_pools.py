"""PoolRouter: requests go to the pool that is for them, and elsewhere rather than nowhere."""

from __future__ import annotations

from jaxserve.routing.least_loaded import LeastLoaded
from jaxserve.routing.pools import Pool, PoolRouter
from jaxserve.routing.router import RoutingRequest
from jaxserve.types import ServiceClass

PAID, FREE, BATCH = ServiceClass


def request(name: str, service_class: ServiceClass, tokens: int = 100, output_tokens: int = 10) -> RoutingRequest:
    return RoutingRequest(
        id=name, pages=(), page_size=16, tokens=tokens, output_tokens=output_tokens, service_class=service_class
    )


def three_pools() -> PoolRouter:
    router = PoolRouter(
        [Pool("long", tuple(ServiceClass), min_tokens=1000), Pool("fast", (PAID, FREE)), Pool("cheap", (BATCH,))], LeastLoaded
    )
    for replica in ("long/0", "fast/0", "fast/1", "cheap/0"):
        router.join(replica)
    return router


def test_class_and_length_say_which_pool() -> None:
    router = three_pools()
    assert router.choose(request("a", PAID), 0.0) == "fast/0"
    assert router.choose(request("b", FREE), 0.0) == "fast/1"
    assert router.choose(request("c", BATCH), 0.0) == "cheap/0"
    assert router.choose(request("d", BATCH, tokens=989), 0.0) == "cheap/0"
    assert router.choose(request("e", PAID, tokens=990), 0.0) == "long/0"


def test_a_pool_without_replicas_leaves_its_requests_to_others() -> None:
    router = three_pools()
    router.leave("fast/0")
    assert router.choose(request("a", PAID), 0.0) == "fast/1"
    assert router.choose(request("b", PAID), 0.0, excluded=("fast/1",)) == "long/0"
    router.leave("long/0")
    router.leave("fast/1")
    assert router.choose(request("c", PAID), 0.0) == "cheap/0"
    router.leave("cheap/0")
    assert router.choose(request("d", PAID), 0.0) is None


def test_what_ended_counts_no_more() -> None:
    router = three_pools()
    assert router.choose(request("a", PAID), 0.0) == "fast/0"
    router.started("a", 0.0)
    router.ended("a", 1.0)
    router.ended("a", 1.0)
    assert router.choose(request("b", PAID), 1.0) == "fast/0"
