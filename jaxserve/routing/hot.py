"""HotPrefixes: over how many replicas a prefix is spread, by its share of the traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxserve.routing.fair_lru import FairLru

_COOLER = 0.8  # a prefix gives up a replica only if the others would do with so much of what they can take


@dataclass(slots=True)
class _Heat:
    work: float = 0.0  # of the recent past: an exponential window of `seconds`
    time: float = 0.0
    copies: int = 1

    def add(self, work: float, now: float, seconds: float) -> None:
        passed = max(now - self.time, 0.0)
        self.work = self.work * math.exp(-passed / seconds) + work
        self.time = max(now, self.time)


class HotPrefixes:
    """Token-work a second of prefixes, of a bounded number of them.

    Args:
        most: prefixes.
        seconds: that rates are taken over.
        grain: work in flight of one prefix that no replica minds.
    """

    def __init__(self, most: int, seconds: float, grain: float) -> None:
        self._seconds = seconds
        self._grain = grain
        self._all = _Heat()
        self._prefixes: FairLru[bytes, _Heat] = FairLru(most)

    def __len__(self) -> int:
        return len(self._prefixes)

    def count(self, tenant: str, prefix: bytes, work: float, now: float) -> None:
        """A request of it is about to be sent."""
        self._all.add(work, now, self._seconds)
        heat = self._prefixes.get(prefix) or _Heat(time=now)
        heat.add(work, now, self._seconds)
        self._prefixes.put(tenant, prefix, heat)
        self._prefixes.trim()

    def copies(self, prefix: bytes, replicas: int, residence: float) -> int:
        """Replicas that should have it: its work in flight (its rate, for `residence` seconds a request) over what one replica
        should have of all, and no fewer than before for a small gain.
        """
        heat = self._prefixes.get(prefix)
        if heat is None:
            return 1
        in_flight = residence / self._seconds
        share = self._all.work * in_flight / max(replicas, 1) + self._grain
        needed = heat.work * in_flight / share
        if needed > heat.copies or needed < _COOLER * (heat.copies - 1):
            heat.copies = max(math.ceil(needed), 1)
        return min(heat.copies, max(replicas, 1))
