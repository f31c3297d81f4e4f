"""How much a step may hold, so that interactive sequences get their tokens in time.

Steps are timed. What a step of a size costs is the moving average of those measured; sizes not measured lately lie on lines
between those that were, and through the two nearest smaller ones. A larger step takes no less, and no more a token: what is known
of other sizes may not miss that by far after a measurement, so that sizes which were much too slow once are tried again at once.

While an interactive sequence decodes, a step is made as large as the time between tokens that was promised (`itl_target_ms`)
allows: half of it while no interactive prompt waits, all of it while four full steps of them do. Beyond that steps grow with what
waits: a queue that only grows helps nobody. And a step with interactive prompts may take three times what its decodes would take
alone: a promise that those nearly use up keeps nobody else waiting for ever. Sizes are those that steps are computed as.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

RATE = 0.2  # weight of the newest measurement
OUTLIER = 2.0  # a measurement counts as at most this many times what was expected: a pause of the machine is no trend
QUIET_SHARE = 0.5  # of the promised time that a step takes while no prompt waits
DEEP_STEPS = 4  # full steps of prompts that wait from which on all of the promised time is used
SLOWEST = 2.0  # a target below this many times the fastest step is out of reach,
INSTEAD = 4.0  # and so many times the fastest is kept
FAIR = 3.0  # times what its decodes would take alone, that a step with interactive prompts may take whatever was promised
SLACK = 2.0  # times by which the cost of another size may miss what the newest measurement allows: contexts differ
FRESH = 2000  # steps after which a measurement is forgotten
SMALLEST = 16  # of the budget's sixteenth, at least: prompts always go on


class StepCosts:
    """Seconds of a step by its size.

    Args:
        sizes: tokens, ascending; a step counts as one of the smallest of them that holds it.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._seconds: dict[int, float] = {}  # averages of those measured lately, ascending by size
        self._measured: dict[int, int] = {}  # number of the step that measured them last
        self._step = 0

    def observe(self, size: int, seconds: float) -> None:
        """A step of this size took so long. A time of zero tells of the clock, not of the step."""
        if seconds <= 0.0:
            return
        size = padded(size, self._sizes)
        known = self.seconds(size) or seconds
        mean = min(seconds, OUTLIER * known)
        if size in self._seconds:
            mean = known + RATE * (mean - known)
        self._step += 1
        self._measured[size] = self._step
        bent = {size: mean}
        for other, average in self._seconds.items():
            if other != size and self._step - self._measured[other] < FRESH:
                one, a_token = mean, mean * other / size
                bent[other] = min(max(average, min(one, a_token) / SLACK), SLACK * max(one, a_token))
        self._seconds = dict(sorted(bent.items()))

    def seconds(self, size: int) -> float:
        """Expected seconds of a step of this size; 0 if nothing was measured."""
        size, known = padded(size, self._sizes), self._seconds
        if size in known or not known:
            return known.get(size, 0.0)
        smaller = [one for one in known if one < size][-2:]
        larger = next((one for one in known if one > size), None)
        if not smaller:
            return known[larger] * size / larger if larger is not None else 0.0
        last = smaller[-1]
        if larger is not None:
            slope = (known[larger] - known[last]) / (larger - last)
        elif len(smaller) == 2:
            slope = (known[last] - known[smaller[0]]) / (last - smaller[0])
        else:
            slope = known[last] / last
        return known[last] + slope * (size - last)

    @property
    def fastest(self) -> float:
        """Seconds of the fastest size measured lately; 0 if none was."""
        return min(self._seconds.values(), default=0.0)


class Pace:
    """Sizes of steps.

    Attributes:
        smallest: tokens of the smallest step that prompts are computed in, half of which at least are theirs.

    Args:
        max_tokens: tokens of a step at most.
        max_rows: rows of a step at most.
        itl_target: seconds between tokens promised to interactive sequences; 0 for no promise.
        sizes: tokens that steps with prompts are computed as, ascending; powers of two by default.
    """

    def __init__(self, max_tokens: int, max_rows: int, itl_target: float, sizes: Sequence[int] = ()) -> None:
        self._max_tokens = max_tokens
        self._target = itl_target
        self._sizes = _up_to(max_tokens, sizes)
        self._rows = _up_to(max_rows, ())
        self.smallest = max(SMALLEST, max_tokens // 16)
        self._mixed = StepCosts(self._sizes)
        self._decode = StepCosts(self._rows)

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """A step was measured."""
        (self._decode if rows == tokens else self._mixed).observe(tokens, seconds)

    def budget(self, decodes: int, waiting_tokens: int) -> int:
        """Tokens of the next step while interactive sequences decode.

        Args:
            decodes: their tokens, which are always in it.
            waiting_tokens: prompt tokens of interactive sequences that could be computed now; batch is in no hurry.
        """
        if not self._target:
            return self._max_tokens
        allowed = self._allowed(decodes, waiting_tokens)
        least = self.padded(max(self.smallest, decodes + self.smallest // 2))
        return next(size for size in reversed(self._sizes) if size == least or self._mixed.seconds(size) <= allowed)

    def padded(self, size: int) -> int:
        """Tokens that a step of so many is computed as."""
        return padded(max(size, self.smallest), self._sizes)

    def max_decodes(self) -> int:
        """Rows that may decode together within the target."""
        if not self._target:
            return self._rows[-1]
        kept = self._kept()
        return next((rows for rows in reversed(self._rows) if self._decode.seconds(rows) <= kept), 1)

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds that a prompt of this many tokens takes in full steps."""
        return self._mixed.seconds(self._max_tokens) * tokens / self._max_tokens

    def _allowed(self, decodes: int, waiting_tokens: int) -> float:
        """Seconds that the next step may take."""
        kept, depth = self._kept(), waiting_tokens / (DEEP_STEPS * self._max_tokens)
        quiet = kept * (QUIET_SHARE + (1.0 - QUIET_SHARE) * depth)
        if not waiting_tokens:
            return quiet
        alone = self._decode.seconds(decodes) or self._mixed.seconds(decodes)
        return max(quiet, FAIR * alone, max(kept, FAIR * alone) * depth)

    def _kept(self) -> float:
        """Seconds between tokens that can be promised."""
        fastest = self._decode.fastest
        return self._target if self._target >= SLOWEST * fastest else INSTEAD * fastest


def padded(size: int, sizes: Sequence[int]) -> int:
    """The smallest of `sizes`, ascending, that holds `size`; the largest if none does."""
    return sizes[min(bisect_left(sizes, size), len(sizes) - 1)]


def _up_to(most: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Those of `sizes`, or the powers of two, that are below `most`; and that."""
    known = sizes or [2**exponent for exponent in range(most.bit_length())]
    return (*(size for size in known if size < most), most)
