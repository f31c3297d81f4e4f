"""Sizes of steps that measurement allows, whatever was learned of their cost.

A learned cost is a belief: where it is wrong and keeps rows waiting, nothing may ever be measured that would tell. So what a step
took is also held against what it was allowed to take: one that was kept small and ended in time lets the next be one size larger,
one that took too long makes it one size smaller. A size that was too slow three times in a row is left alone for a while.
(Additive increase, multiplicative decrease in sizes that grow geometrically: Chiu and Jain, 1989.)
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from jaxserve.scheduler.step_costs import padded

TOO_SLOW = 3  # steps in a row that took longer than allowed, after which a size is left alone
RETRY_STEPS, RETRY_SECONDS = 500, 30.0  # after the earlier of which it is tried again, once


class Headroom:
    """The largest size that was shown to be in time, or is to be tried.

    Attributes:
        bound: that size; 0 if there is none.

    Args:
        sizes: tokens or rows, ascending; a step counts as one of the smallest of them that holds it.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.bound = 0
        self._sizes = sizes
        self._slow: dict[int, tuple[int, int, float]] = {}  # size -> times too slow in a row; step and time of the last
        self._step = 0
        self._time = 0.0  # that steps took

    def observe(self, size: int, seconds: float, allowed: float, *, held: bool) -> None:
        """A step took so long and might have taken `allowed` seconds; `held`: more would have been in it, had it been larger."""
        self._step += 1
        if not math.isfinite(seconds) or seconds <= 0.0:
            return
        self._time += seconds
        place = bisect_left(self._sizes, padded(size, self._sizes))
        size = self._sizes[place]
        if seconds > allowed:
            self._slow[size] = (self._slow.get(size, (0, 0, 0.0))[0] + 1, self._step, self._time)
            self.bound = min(self.bound, self._sizes[place - 1] if place else 0)
            return
        self._slow.pop(size, None)
        if held and place + 1 < len(self._sizes) and not self._left_alone(self._sizes[place + 1]):
            self.bound = max(self.bound, self._sizes[place + 1])

    def _left_alone(self, size: int) -> bool:
        times, step, time = self._slow.get(size, (0, 0, 0.0))
        return times >= TOO_SLOW and self._step - step < RETRY_STEPS and self._time - time < RETRY_SECONDS
