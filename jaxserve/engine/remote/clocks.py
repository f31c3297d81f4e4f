"""Another machine's clock, read from afar."""

from __future__ import annotations

import math

DRIFT = 1e-4  # seconds that two clocks may part in a second, far more than quartz does and less than NTP may slew them


class FarClock:
    """How far another clock is before ours, from round trips: whatever either way took, it is off by half of one at most.

    The shortest counts, until it is so old that clocks may have parted by more than a newer one is off.

    Attributes:
        ahead: seconds that it is before ours.
    """

    def __init__(self) -> None:
        self.ahead = 0.0
        self._error = math.inf
        self._measured = 0.0

    def off(self, now: float) -> float:
        """Seconds that `ahead` is off at most; infinite before the first round trip."""
        return self._error + DRIFT * (now - self._measured)

    def read(self, sent: float, there: float, received: float) -> None:
        """It was `there` at some time between `sent` and `received`, which are ours."""
        error = (received - sent) / 2
        if error <= self.off(received):
            self.ahead, self._error, self._measured = there - (sent + received) / 2, error, received
