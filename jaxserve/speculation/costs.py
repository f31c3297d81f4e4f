"""What steps of decodes cost, with and without drafts, by rows and tokens, as it was measured.

A size that was not measured lately is taken to cost no more than the dearest known one that is no larger: it is tried if that
would pay, and known from then on. A first measurement may be a pause of the machine: until there are a few, they count as no more
than twice that. Whatever clocks say, costs are finite and positive.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

RATE = 0.2  # weight of the newest measurement
OUTLIER = 2.0  # a measurement counts as at most this many times what was expected
TRUSTED = 3  # measurements after which a size is believed
FRESH = 500  # steps after which a measurement is forgotten
LEAST, MOST = 1e-6, 1e4  # seconds of a step that are believed


@dataclass(slots=True)
class _Known:
    seconds: float
    count: int
    step: int


class DraftCosts:
    """Seconds of steps. A size counts as one of four in every doubling, the next larger.

    Args:
        most: tokens of the largest step.
    """

    def __init__(self, most: int) -> None:
        sizes = {quarters << shift >> 2 for shift in range(most.bit_length() + 1) for quarters in range(4, 8)}
        self._sizes = sorted({*sizes, most} - {0})
        self._known: dict[tuple[int, int], _Known] = {}
        self._step = 0

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """A step of this size took so long. A time that is not finite and positive tells of the clock, not of the step."""
        self._step += 1
        if not math.isfinite(seconds) or seconds <= 0.0:
            return
        seconds = min(max(seconds, LEAST), MOST)
        size = self._padded(rows), self._padded(tokens)
        known = self._fresh(size)
        if known is None:
            self._known[size] = _Known(seconds, 1, self._step)
            return
        known.seconds += RATE * (min(seconds, OUTLIER * known.seconds) - known.seconds)
        known.count += 1
        known.step = self._step

    def seconds(self, rows: int, tokens: int) -> float:
        """Expected seconds of a step; 0 if nothing like it was measured."""
        size = self._padded(rows), self._padded(tokens)
        known = self._fresh(size)
        if known is not None and (known.count >= TRUSTED or size[0] == size[1]):
            return known.seconds
        smaller = [
            one.seconds
            for (its_rows, its_tokens), one in self._known.items()
            if its_rows <= size[0] and its_tokens <= size[1] and (its_rows, its_tokens) != size and self._is_fresh(one)
        ]
        least = max(smaller, default=0.0)
        return least if known is None else min(known.seconds, OUTLIER * least) if least else known.seconds

    def padded(self, tokens: int) -> int:
        """The size that a step of so many tokens counts as."""
        return self._padded(tokens)

    def _padded(self, size: int) -> int:
        return self._sizes[min(bisect_left(self._sizes, size), len(self._sizes) - 1)]

    def _fresh(self, size: tuple[int, int]) -> _Known | None:
        known = self._known.get(size)
        return known if known is not None and self._is_fresh(known) else None

    def _is_fresh(self, known: _Known) -> bool:
        return self._step - known.step < FRESH
