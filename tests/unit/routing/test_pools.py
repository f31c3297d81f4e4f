"""PoolRouter: requests go to the pool that is for them, and elsewhere rather than nowhere."""

from __future__ import annotations

from jaxserve.routing.least_loaded import LeastLoaded
from jaxserve.routing.pools import Pool, PoolRouter
from jaxserve.routing.prefix_router import PrefixRouter
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


def test_the_router_of_a_replicas_pool_hears_what_it_holds() -> None:
    made: list[PrefixRouter] = []

    def build() -> PrefixRouter:
        made.append(PrefixRouter())
        return made[-1]

    router = PoolRouter([Pool("one", tuple(ServiceClass)), Pool("two", (BATCH,))], build)
    assert router.pages is router
    assert [router.stride(page_size) for page_size in (16, 24, 500)] == [8, 5, 1]
    for replica in ("one/0", "one/1", "two/0"):
        router.join(replica)
    pages = tuple(bytes([number]) * 16 for number in range(64))
    asked = RoutingRequest(id="a", pages=pages, page_size=16, tokens=1025, output_tokens=1)
    away = made[0].choose(asked, 0.0)
    other = next(name for name in ("one/0", "one/1") if name != away)
    router.cleared("one/0")
    router.cleared("one/1")
    router.stored(other, pages)
    router.stored("two/0", pages)
    assert router.choose(asked, 0.0) == other
    router.removed(other, pages)
    assert [len(one._knowledge) for one in made] == [0, 64]


def test_pools_that_look_at_no_prompt_want_to_hear_nothing() -> None:
    router = three_pools()
    assert router.pages is None
    router.stored("fast/0", [b"page"])
    router.removed("fast/0", [b"page"])
    router.cleared("fast/0")
