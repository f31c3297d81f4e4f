"""What the router of a simulated fleet is told of requests."""

from __future__ import annotations

import math
from itertools import accumulate

from jaxserve.cache.prefix_hash import page_hash
from jaxserve.routing.router import RoutingRequest
from jaxserve.simulation.ledger import Record
from jaxserve.simulation.replica import ReplicaSpec, cache_root


def routing_request(record: Record, spec: ReplicaSpec, now: float) -> RoutingRequest:
    """A request as a front end would describe it: with the names that the replicas' caches give its prompt's pages."""
    request, since = record.request, record.granted if record.moves else now
    return RoutingRequest(
        id=record.id,
        pages=_pages(request.tokens(), spec.limits.page_size, cache_root(request.tenant)) if spec.prefix_caching else (),
        page_size=spec.limits.page_size,
        tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        tenant=request.tenant,
        service_class=request.service_class,
        deadline=math.inf if request.timeout is None else since + request.timeout,
    )


def _pages(tokens: tuple[int, ...], page_size: int, root: bytes) -> tuple[bytes, ...]:
    full = (tokens[start : start + page_size] for start in range(0, len(tokens) - page_size + 1, page_size))
    return tuple(accumulate(full, page_hash, initial=root))[1:]
