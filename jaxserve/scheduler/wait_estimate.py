"""How long what waits takes: token-work over the rate at which work was done lately, corrected by how long requests did wait."""

from __future__ import annotations

import math

HORIZON = 10.0  # seconds over which the rate is averaged
OUTLIER, SHORT = 4.0, 0.1  # a step counts as at most so many times what was expected, or of so many seconds: a pause is no trend
RATE = 1 / 8  # weight of the newest comparison of an estimate with what happened
OFF, LEAST_OFF = 2.0, 0.5  # an estimate is wrong if it misses by this factor and by so many seconds
MOST_CORRECTED = 8.0  # times by which estimates are corrected at most, either way


class WaitEstimate:
    """Seconds from token-work.

    Attributes:
        num_wrong: estimates that were off by more than twice.
    """

    def __init__(self) -> None:
        self.num_wrong = 0
        self._work = 0.0  # done lately by steps that had no room for more; older work counts less
        self._seconds = 0.0  # that it took
        self._log_correction = 0.0

    @property
    def rate(self) -> float:
        """Token-work a second; 0 until measured."""
        return self._work / self._seconds if self._seconds else 0.0

    def observe(self, work: float, seconds: float) -> None:
        """A step did this much work while sequences waited: as much as the machine can."""
        if not (math.isfinite(seconds) and seconds > 0.0 and math.isfinite(work) and work >= 0.0):
            return
        if self._seconds and self._work:
            seconds = min(seconds, OUTLIER * max(work / self.rate, SHORT))
        kept = math.exp(-seconds / HORIZON)
        self._work = kept * self._work + work
        self._seconds = kept * self._seconds + seconds

    def seconds(self, work: float) -> float:
        """Seconds until so much work is done; 0 while nothing is known."""
        return self.uncorrected(work) * math.exp(self._log_correction)

    def uncorrected(self, work: float) -> float:
        """The same by the rate alone."""
        return work / self.rate if self.rate else 0.0

    def compare(self, uncorrected: float, waited: float) -> None:
        """A request started after so many seconds, for which `uncorrected` were worked out when it came."""
        estimate = uncorrected * math.exp(self._log_correction)
        if not uncorrected or max(estimate, waited) < LEAST_OFF or not math.isfinite(waited):
            return
        ratio = max(waited, LEAST_OFF) / max(uncorrected, LEAST_OFF)
        if abs(waited - estimate) > LEAST_OFF and not 1 / OFF <= max(waited, LEAST_OFF) / max(estimate, LEAST_OFF) <= OFF:
            self.num_wrong += 1
        wanted = min(max(math.log(ratio), -math.log(MOST_CORRECTED)), math.log(MOST_CORRECTED))
        self._log_correction += RATE * (wanted - self._log_correction)
