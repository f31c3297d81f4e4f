"""Distributions and time lines in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

_RATIO = math.log(1.01)  # width of a histogram's bins: a percentile is within 0.5 % of the exact one
_QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A distribution of seconds; all 0 where `count` is 0."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: npt.NDArray[np.float64]) -> Percentiles:
        """Exact percentiles (the smallest value that at least the share of values does not exceed)."""
        if len(values) == 0:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        p50, p90, p99 = np.percentile(values, [100 * q for q in _QUANTILES], method="inverted_cdf").tolist()
        return cls(len(values), float(values.mean()), p50, p90, p99, float(values.max()))


@dataclass(slots=True)
class Histogram:
    """Counts of positive durations in bins of 1 %: millions of values in a few hundred numbers.

    Attributes:
        counts: bin -> values in it.
        count, total, low, high: exact.
    """

    counts: dict[int, int] = field(default_factory=dict)
    count: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = 0.0
    _last: tuple[float, int] = (0.0, 0)

    def add(self, seconds: float) -> None:
        if seconds == self._last[0]:  # the rows of a step have equal gaps
            place = self._last[1]
        else:
            place = math.floor(math.log(seconds) / _RATIO)
            self._last = (seconds, place)
            self.low, self.high = min(self.low, seconds), max(self.high, seconds)
        self.counts[place] = self.counts.get(place, 0) + 1
        self.count += 1
        self.total += seconds

    def merge(self, other: Histogram) -> None:
        for place, count in other.counts.items():
            self.counts[place] = self.counts.get(place, 0) + count
        self.count += other.count
        self.total += other.total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    def percentiles(self) -> Percentiles:
        """Percentiles to the bins' precision; mean and max are exact."""
        if self.count == 0:
            return Percentiles(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        p50, p90, p99 = (self._quantile(q) for q in _QUANTILES)
        return Percentiles(self.count, self.total / self.count, p50, p90, p99, self.high)

    def cumulative(self) -> list[tuple[float, float]]:
        """(seconds, share of values that are at most about as long), in order."""
        points, below = [], 0
        for place in sorted(self.counts):
            below += self.counts[place]
            points.append((self._middle(place), below / self.count))
        return points

    def _quantile(self, share: float) -> float:
        return next(seconds for seconds, below in self.cumulative() if below >= share - 1e-12)

    def _middle(self, place: int) -> float:
        return min(max(math.exp((place + 0.5) * _RATIO), self.low), self.high)


class Timeline:
    """Counts and levels over time, in at most `max_bins` equal bins; bins double in width as time goes on."""

    def __init__(self, max_bins: int = 512, width: float = 1 / 64) -> None:
        self.width = width
        self._max_bins = max_bins
        self._sums: dict[str, list[float]] = {}
        self._weights: dict[str, list[float]] = {}

    def count(self, time: float, name: str, amount: float = 1.0) -> None:
        self._add(self._sums, name, self._bin(time), amount)

    def level(self, time: float, values: Mapping[str, float], seconds: float) -> None:
        """From `time` on, these levels lasted for `seconds`."""
        place = self._bin(time)
        for name, value in values.items():
            self._add(self._sums, name, place, value * seconds)
            self._add(self._weights, name, place, seconds)

    def series(self, names: Iterable[str]) -> dict[str, list[float | None]]:
        """For each bin: what was counted a second, or the mean level over time and replicas (None where there was none)."""
        used = max((len(values) for values in self._sums.values()), default=0)
        return {name: self._series(name, used) for name in names}

    def _series(self, name: str, used: int) -> list[float | None]:
        sums = _padded(self._sums.get(name, []), used)
        weights = self._weights.get(name)
        if weights is None:
            return [value / self.width for value in sums]
        return [value / weight if weight > 0 else None for value, weight in zip(sums, _padded(weights, used), strict=True)]

    def _bin(self, time: float) -> int:
        place = int(time / self.width)
        while place >= self._max_bins:
            self.width *= 2
            for table in (self._sums, self._weights):
                for name, values in table.items():
                    table[name] = [sum(values[at : at + 2]) for at in range(0, len(values), 2)]
            place = int(time / self.width)
        return place

    def _add(self, table: dict[str, list[float]], name: str, place: int, amount: float) -> None:
        values = table.setdefault(name, [])
        if place >= len(values):
            values.extend([0.0] * (place + 1 - len(values)))
        values[place] += amount


def _padded(values: list[float], length: int) -> list[float]:
    return values + [0.0] * (length - len(values))
