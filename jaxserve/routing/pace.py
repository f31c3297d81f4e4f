"""Pace: how long a request takes where so much work is ahead of it, learned from those that ended."""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT = 0.05  # of the latest request


@dataclass(slots=True)
class Pace:
    """Of a replica of weight 1; nothing is known, and all takes no time, before the first request ended.

    Attributes:
        residence: seconds from a request's choice to its end.
        per_work: seconds of it for a unit of the work that was ahead, its own included.
    """

    residence: float = 0.0
    per_work: float = 0.0

    def ended(self, ahead: float, seconds: float) -> None:
        if not (ahead > 0.0 and seconds > 0.0):
            return
        weight = _WEIGHT if self.residence else 1.0
        self.residence += weight * (seconds - self.residence)
        self.per_work += weight * (seconds / ahead - self.per_work)

    def seconds(self, ahead: float) -> float:
        return ahead * self.per_work
