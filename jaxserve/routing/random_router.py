"""RandomRouter: to any replica, in proportion to their speeds; what other routers are held against."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from jaxserve.routing.router import PageListener, ReplicaLoad, RoutingRequest


class RandomRouter:
    """A Router that knows nothing but who is there.

    Args:
        seed: of its choices.
    """

    pages: PageListener | None = None

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(f"routing {seed}")
        self._weights: dict[str, float] = {}

    def join(self, replica: str, weight: float = 1.0) -> None:
        self._weights[replica] = weight

    def leave(self, replica: str) -> None:
        self._weights.pop(replica, None)

    def observe(self, replica: str, load: ReplicaLoad, now: float) -> None:
        """Nothing of it is looked at."""

    def choose(self, request: RoutingRequest, now: float, excluded: Collection[str] = ()) -> str | None:
        candidates = [replica for replica in self._weights if replica not in excluded]
        if not candidates:
            return None
        return self._random.choices(candidates, [self._weights[replica] for replica in candidates])[0]

    def started(self, request_id: str, now: float) -> None:
        """Nothing is kept of it."""

    def ended(self, request_id: str, now: float) -> None:
        """Nothing is kept of it."""
