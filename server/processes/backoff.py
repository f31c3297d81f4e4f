"""When to start something again that ended."""

from __future__ import annotations

LASTED_SECONDS = 60.0  # what ran for so long did not fail at once
LONGEST_SECONDS = 30.0


class Backoff:
    """Counts failures in a row.

    Attributes:
        seconds: to wait now: none after the first failure, then 1, 2, 4 and so on.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._failures = 0

    def failed(self, lasted: float) -> int:
        """It ended after so many seconds. Returns the failures in a row, this one too."""
        if lasted >= LASTED_SECONDS:
            self._failures = 0
        self._failures += 1
        self.seconds = 0.0 if self._failures == 1 else min(2.0 ** (self._failures - 2), LONGEST_SECONDS)
        return self._failures
