"""RoundRobin: to one replica after another, in proportion to their speeds."""

from __future__ import annotations

from collections.abc import Collection

from jaxserve.routing.router import PageListener, ReplicaLoad, RoutingRequest


class RoundRobin:
    """A Router that gives every replica its turns, spread evenly: each earns its weight with every request, the one that has the
    most takes it and pays for all.
    """

    pages: PageListener | None = None

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}
        self._earned: dict[str, float] = {}

    def join(self, replica: str, weight: float = 1.0) -> None:
        self._weights[replica] = weight
        self._earned.setdefault(replica, 0.0)

    def leave(self, replica: str) -> None:
        self._weights.pop(replica, None)
        self._earned.pop(replica, None)

    def observe(self, replica: str, load: ReplicaLoad, now: float) -> None:
        """Nothing of it is looked at."""

    def choose(self, request: RoutingRequest, now: float, excluded: Collection[str] = ()) -> str | None:
        candidates = [replica for replica in self._weights if replica not in excluded]
        if not candidates:
            return None
        for replica in candidates:
            self._earned[replica] += self._weights[replica]
        chosen = max(candidates, key=lambda replica: self._earned[replica])
        self._earned[chosen] -= sum(self._weights[replica] for replica in candidates)
        return chosen

    def started(self, request_id: str, now: float) -> None:
        """Nothing is kept of it."""

    def ended(self, request_id: str, now: float) -> None:
        """Nothing is kept of it."""
