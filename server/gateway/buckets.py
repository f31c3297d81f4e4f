"""A token bucket in whole numbers: what is charged and given back is exact, and the time of the next success is too."""

from __future__ import annotations

MINUTE = 60_000_000  # microseconds


class Bucket:
    """Holds `limit` units when full and gets `limit` of them a minute.

    So in any time it lets through what it holds and what flows in: limit * (1 + minutes). Levels are counted in units times
    microseconds of a minute, times in microseconds of a monotonic clock: no rounding anywhere.

    Args:
        limit: units a minute, and at most held.
        now: microseconds.
    """

    def __init__(self, limit: int, now: int) -> None:
        self._limit = limit
        self._level = limit * MINUTE
        self._time = now

    @property
    def limit(self) -> int:
        """Units a minute."""
        return self._limit

    def set_limit(self, limit: int, now: int) -> None:
        """Change the limit; what is held beyond the new one is lost."""
        if limit != self._limit:
            self._flow(now)
            self._limit = limit
            self._level = min(self._level, limit * MINUTE)

    def take(self, units: int, now: int) -> None:
        """Take units, whether they are there or not: a bucket in debt lets nothing through until it has flowed in."""
        self._flow(now)
        self._level -= units * MINUTE

    def give_back(self, units: int, now: int) -> None:
        """Give back units that were taken; the bucket does not overflow."""
        self._level += units * MINUTE
        self._flow(now)

    def remaining(self, now: int) -> int:
        """Whole units that can be taken, none while it is in debt."""
        self._flow(now)
        return max(self._level, 0) // MINUTE

    def wait(self, units: int, now: int) -> int:
        """Microseconds until so many units can be taken, 0 for now. They must not exceed the limit."""
        self._flow(now)
        missing = units * MINUTE - self._level
        return max(-(-missing // self._limit), 0)

    def _flow(self, now: int) -> None:
        """Let in what came since; a time before the last counts as the last."""
        passed = max(now - self._time, 0)
        self._time += passed
        self._level = min(self._level + passed * self._limit, self._limit * MINUTE)
