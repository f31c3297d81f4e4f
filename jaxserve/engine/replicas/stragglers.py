"""Replicas whose steps take much longer than the others': they get nothing new for a while, and are tried again."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class _Watched:
    """One replica.

    Attributes:
        slow_since: since when its steps have been slow; None while they are not.
        until: when it is tried again; None while it takes requests.
        stale: what was known of its steps before it was tried again, which says nothing any more.
    """

    slow_since: float | None = None
    until: float | None = None
    stale: float = 0.0


class Stragglers:
    """Compares each replica's steps with the median of the others'.

    Args:
        factor: times the median that a step is slow from.
        slow_seconds: how long steps must be slow.
        quarantine_seconds: how long a slow replica gets nothing new.
    """

    def __init__(self, factor: float, slow_seconds: float, quarantine_seconds: float) -> None:
        self._factor = factor
        self._slow_seconds = slow_seconds
        self._quarantine_seconds = quarantine_seconds
        self._watched: dict[str, _Watched] = {}

    @property
    def quarantined(self) -> frozenset[str]:
        return frozenset(name for name, one in self._watched.items() if one.until is not None)

    def look(self, step_seconds: Mapping[str, float], now: float) -> list[str]:
        """Look at all replicas there are, by the seconds of their steps, 0 if unknown. Returns those quarantined just now."""
        for name in self._watched.keys() - step_seconds.keys():
            del self._watched[name]
        found = []
        for name, seconds in step_seconds.items():
            one = self._watched.setdefault(name, _Watched())
            if one.until is not None:
                if now >= one.until:
                    one.until, one.slow_since, one.stale = None, None, seconds
                continue
            if not self._is_slow(name, one, step_seconds):
                one.slow_since = None
            elif one.slow_since is None:
                one.slow_since = now
            elif now - one.slow_since >= self._slow_seconds:
                one.until = now + self._quarantine_seconds
                found.append(name)
        return found

    def _is_slow(self, name: str, one: _Watched, step_seconds: Mapping[str, float]) -> bool:
        seconds = step_seconds[name]
        if seconds == one.stale:
            return False
        one.stale = 0.0
        others = [value for other, value in step_seconds.items() if other != name and value > 0.0]
        return bool(others) and seconds > self._factor * statistics.median(others)
