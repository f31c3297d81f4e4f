"""PoolRouter: a fleet whose replicas are of several kinds, each with a router of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from jaxserve.routing.router import PageListener, ReplicaLoad, Router, RoutingRequest
from jaxserve.types import ServiceClass


@dataclass(frozen=True, slots=True)
class Pool:
    """What goes to a pool first.

    Attributes:
        name: of the pool; its replicas are called "NAME/...".
        classes: of requests.
        min_tokens, max_tokens: of their prompt and expected output together.
    """

    name: str
    classes: Collection[ServiceClass]
    min_tokens: int = 0
    max_tokens: int | None = None

    def takes(self, request: RoutingRequest) -> bool:
        tokens = request.tokens + request.output_tokens
        return (
            request.service_class in self.classes
            and tokens >= self.min_tokens
            and (self.max_tokens is None or tokens <= self.max_tokens)
        )


class PoolRouter:
    """A Router that gives a request to the first pool that takes it, and where that has no replica, to the next.

    Those that no pool takes, and those whose pools have no replicas, go to whichever pool has one: late is better than never.

    Args:
        pools: in order of preference.
        router: makes the router of one pool.
    """

    def __init__(self, pools: Sequence[Pool], router: Callable[[], Router]) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._routers = {pool.name: router() for pool in pools}
        self._requests: dict[str, str] = {}  # request -> pool

    @property
    def pages(self) -> PageListener | None:
        """The pools' routers are of one kind."""
        return self if any(router.pages is not None for router in self._routers.values()) else None

    def join(self, replica: str, weight: float = 1.0) -> None:
        self._router_of(replica).join(replica, weight)

    def leave(self, replica: str) -> None:
        self._router_of(replica).leave(replica)

    def observe(self, replica: str, load: ReplicaLoad, now: float) -> None:
        self._router_of(replica).observe(replica, load, now)

    def choose(self, request: RoutingRequest, now: float, excluded: Collection[str] = ()) -> str | None:
        for name in sorted(self._pools, key=lambda name: not self._pools[name].takes(request)):  # stable: else in their order
            replica = self._routers[name].choose(request, now, excluded)
            if replica is not None:
                self._requests[request.id] = name
                return replica
        return None

    def started(self, request_id: str, now: float) -> None:
        if request_id in self._requests:
            self._routers[self._requests[request_id]].started(request_id, now)

    def ended(self, request_id: str, now: float) -> None:
        pool = self._requests.pop(request_id, None)
        if pool is not None:
            self._routers[pool].ended(request_id, now)

    def stride(self, page_size: int) -> int:
        listeners = [router.pages for router in self._routers.values()]
        return math.gcd(*(one.stride(page_size) for one in listeners if one is not None)) or 1

    def stored(self, replica: str, pages: Iterable[bytes]) -> None:
        listener = self._router_of(replica).pages
        if listener is not None:
            listener.stored(replica, pages)

    def removed(self, replica: str, pages: Iterable[bytes]) -> None:
        listener = self._router_of(replica).pages
        if listener is not None:
            listener.removed(replica, pages)

    def cleared(self, replica: str) -> None:
        listener = self._router_of(replica).pages
        if listener is not None:
            listener.cleared(replica)

    def _router_of(self, replica: str) -> Router:
        return self._routers[replica.partition("/")[0]]
