"""What a step of a size costs, learned from steps that were timed.

The cost of a size is the moving average of those measured; sizes not measured lately lie on lines between those that were, and
through the two nearest smaller ones. What is known of other sizes may not miss by far what a measurement allows (a larger step
takes no less, and no more a token), so that sizes which were much too slow once are tried again at once.

Whatever clocks say, costs are finite, positive and never fall with size: where two contradict each other the one that was
measured later holds, and no line is steeper than through nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

RATE = 0.2  # weight of the newest measurement
OUTLIER = 2.0  # a measurement counts as at most this many times what was expected: a pause of the machine is no trend
SLACK = 2.0  # times by which the cost of another size may miss what the newest measurement allows: contexts differ
FRESH = 2000  # steps after which a measurement is forgotten
LEAST, MOST = 1e-6, 1e4  # seconds of a step that are believed


class StepCosts:
    """Seconds of a step by its size.

    Args:
        sizes: tokens or rows, ascending; a step counts as one of the smallest of them that holds it.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._seconds: dict[int, float] = {}  # averages of those measured lately, the latest last
        self._measured: dict[int, int] = {}  # number of the step that measured them last
        self._curve: list[tuple[int, float]] = []  # the same by size, never falling; made when somebody asks
        self._step = 0

    def observe(self, size: int, seconds: float) -> None:
        """A step of this size took so long. A time that is not finite and positive tells of the clock, not of the step."""
        if not math.isfinite(seconds) or seconds <= 0.0:
            return
        size = padded(size, self._sizes)
        known = self._seconds.get(size) or self.seconds(size) or seconds
        mean = min(seconds, OUTLIER * known)
        if size in self._seconds:
            mean = known + RATE * (mean - known)
        mean = min(max(mean, LEAST), MOST)
        self._step += 1
        self._measured[size] = self._step
        bent = {}
        for other, average in self._seconds.items():
            if other != size and self._step - self._measured[other] < FRESH:
                one, a_token = mean, mean * other / size
                bent[other] = min(max(average, min(one, a_token) / SLACK), SLACK * max(one, a_token))
        bent[size] = mean
        self._seconds = bent
        self._curve = []

    def seconds(self, size: int) -> float:
        """Expected seconds of a step of this size; 0 if nothing was measured."""
        if not self._seconds:
            return 0.0
        size, curve = padded(size, self._sizes), self._known()
        place = bisect_left(curve, (size, 0.0))
        if not place:
            first, cost = curve[0]
            return cost * size / first
        last, cost = curve[place - 1]
        slope = cost / last
        if place < len(curve):
            larger, its_cost = curve[place]
            if larger == size:
                return its_cost
            slope = min(slope, (its_cost - cost) / (larger - last))
        elif place > 1:
            smaller, its_cost = curve[place - 2]
            slope = min(slope, (cost - its_cost) / (last - smaller))
        return cost + slope * (size - last)

    @property
    def fastest(self) -> float:
        """Seconds of the fastest size measured lately; 0 if none was."""
        return self._known()[0][1] if self._seconds else 0.0

    def _known(self) -> list[tuple[int, float]]:
        """Costs by size, ascending: the latest as it is, earlier ones between those of its neighbours that are later."""
        if not self._curve:
            for size, seconds in reversed(self._seconds.items()):
                place = bisect_left(self._curve, (size, 0.0))
                least = self._curve[place - 1][1] if place else 0.0
                most = self._curve[place][1] if place < len(self._curve) else math.inf
                self._curve.insert(place, (size, min(max(seconds, least), most)))
        return self._curve


def padded(size: int, sizes: Sequence[int]) -> int:
    """The smallest of `sizes`, ascending, that holds `size`; the largest if none does."""
    return sizes[min(bisect_left(sizes, size), len(sizes) - 1)]
