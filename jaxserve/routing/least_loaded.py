"""LeastLoaded: to the replica with the fewest requests in flight."""

from __future__ import annotations

from collections.abc import Collection

from jaxserve.routing.router import PageListener, ReplicaLoad, RoutingRequest


class LeastLoaded:
    """A Router that looks at nothing but how many requests each replica has, for its speed; the first that joined of equals."""

    pages: PageListener | None = None

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}
        self._in_flight: dict[str, set[str]] = {}
        self._replicas: dict[str, str] = {}  # request -> replica

    def join(self, replica: str, weight: float = 1.0) -> None:
        self._weights[replica] = weight
        self._in_flight.setdefault(replica, set())

    def leave(self, replica: str) -> None:
        self._weights.pop(replica, None)
        for request in self._in_flight.pop(replica, ()):
            del self._replicas[request]

    def observe(self, replica: str, load: ReplicaLoad, now: float) -> None:
        """Nothing of it is looked at."""

    def choose(self, request: RoutingRequest, now: float, excluded: Collection[str] = ()) -> str | None:
        candidates = [replica for replica in self._weights if replica not in excluded]
        if not candidates:
            return None
        chosen = min(candidates, key=lambda replica: len(self._in_flight[replica]) / self._weights[replica])
        self._in_flight[chosen].add(request.id)
        self._replicas[request.id] = chosen
        return chosen

    def started(self, request_id: str, now: float) -> None:
        """Nothing changes by it."""

    def ended(self, request_id: str, now: float) -> None:
        replica = self._replicas.pop(request_id, None)
        if replica is not None:
            self._in_flight[replica].discard(request_id)
