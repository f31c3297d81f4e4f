"""Which replica takes a request: the router says, unless replicas refused it."""

from __future__ import annotations

from collections.abc import Mapping, Set

from jaxserve.engine.link import EngineLoad
from jaxserve.engine.replicas.carried import CarriedRequest
from jaxserve.routing.router import Router


class Placement:
    """Asks a router.

    Args:
        router: knows the replicas that take requests.
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    def assign(self, carried: CarriedRequest, replica: str, ready: Mapping[str, EngineLoad], now: float) -> None:
        """Tell the router that a request runs in one of the replicas that take requests, whatever it would say."""
        self._router.choose(carried.routing, now, [name for name in ready if name != replica])

    def choose(
        self,
        carried: CarriedRequest,
        ready: Mapping[str, EngineLoad],
        slow: Set[str],
        now: float,
        reserved: str | None = None,
    ) -> str | None:
        """A replica for a request, which is the router's from now on; None if there is none that has not refused it.

        Of those that did not, the least loaded is next. A slow one is better than none.

        Args:
            ready: those that take requests, with their load.
            slow: those that get none if there are others.
            reserved: one that gets none; None for none.
        """
        left = [name for name in ready if name not in carried.tried and name != reserved]
        left = [name for name in left if name not in slow] or left
        if not left:
            return None
        if carried.tried:
            left = [min(left, key=lambda name: ready[name].running + ready[name].waiting)]
        return self._router.choose(carried.routing, now, [name for name in ready if name not in left])
