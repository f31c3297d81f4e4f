"""When requests arrive: Poisson processes whose rate changes with time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

Pattern = Literal["poisson", "bursts", "diurnal", "spike"]

BURST_SHARE = 0.1  # of each period


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalProcess:
    """Requests a second over time.

    Attributes:
        pattern: "poisson": `rate` always. "bursts": `peak` times the rate in the first tenth of every period. "diurnal": a sine
            with the mean `rate`, whose crest is `peak` times its trough. "spike": `peak` times the rate from `start` on for
            `duration`.
        rate: requests a second.
        peak: a factor, at least 1.
        period: seconds of a burst cycle or of a day.
        start, duration: seconds, of the spike.
    """

    pattern: Pattern
    rate: float
    peak: float
    period: float
    start: float
    duration: float

    def rate_at(self, time: float) -> float:
        if self.pattern == "bursts":
            return self.rate * (self.peak if time % self.period < BURST_SHARE * self.period else 1.0)
        if self.pattern == "diurnal":
            swing = (self.peak - 1) / (self.peak + 1)
            return self.rate * (1 - swing * math.cos(2 * math.pi * time / self.period))  # a day begins at night
        if self.pattern == "spike":
            return self.rate * (self.peak if self.start <= time < self.start + self.duration else 1.0)
        return self.rate

    def times(self, random: Random) -> Iterator[float]:
        """Arrival times in order, without end (thinning: candidates at the highest rate, kept with the chance rate / highest)."""
        highest = self.rate * self.peak
        time = 0.0
        while True:
            time += random.expovariate(highest)
            if random.random() * highest < self.rate_at(time):
                yield time
