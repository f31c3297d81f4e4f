"""How much a step may hold, so that interactive sequences get their tokens in time.

Steps are timed. What a step of a size costs is the moving average of those measured; of a size not measured lately, a line
through the two nearest smaller ones. While an interactive sequence decodes, a step is made as large as the time between tokens
that was promised (`itl_target_ms`) allows: half of it while no interactive prompt waits, all of it while four full steps of them
do. Beyond that steps grow with what waits: a queue that only grows helps nobody. Sizes are powers of two, as steps are padded to.
"""

from __future__ import annotations

RATE = 0.2  # weight of the newest measurement
OUTLIER = 2.0  # a measurement counts as at most this many times the average: a pause of the machine is no trend
FRESH = 2000  # steps after which a measurement is forgotten
QUIET_SHARE = 0.5  # of the promised time that a step takes while no prompt waits
DEEP_STEPS = 4  # full steps of prompts that wait from which on all of the promised time is used
SLOWEST = 2.0  # a target below this many times the fastest step is out of reach, and this is kept instead
SMALLEST = 16  # of the budget's sixteenth, at least: prompts always go on


class StepCosts:
    """Seconds of a step by its size, in powers of two as steps are padded to."""

    def __init__(self) -> None:
        self._seconds: dict[int, tuple[float, int]] = {}  # exponent -> average, and number of the step that measured it last
        self._step = 0

    def observe(self, size: int, seconds: float) -> None:
        """A step of this size took so long. A time of zero tells of the clock, not of the step."""
        if seconds <= 0.0:
            return
        self._step += 1
        exponent = _exponent(size)
        known, _ = self._seconds.get(exponent, (seconds, 0))
        seconds = min(seconds, OUTLIER * known)
        self._seconds[exponent] = (known + RATE * (seconds - known), self._step)

    def seconds(self, size: int) -> float:
        """Expected seconds of a step of this size; 0 if nothing was measured."""
        exponent = _exponent(size)
        known = self._seconds.get(exponent)
        if known is not None and self._step - known[1] < FRESH:
            return known[0]
        fresh = self._fresh()
        smaller = sorted(known for known in fresh if known < exponent)[-2:]
        if not smaller:
            return min(fresh.values(), default=0.0)
        last = smaller[-1]
        slope = fresh[last] / 2.0**last
        if len(smaller) == 2:
            slope = max(0.0, (fresh[last] - fresh[smaller[0]]) / (2.0**last - 2.0 ** smaller[0]))
        return fresh[last] + slope * (2.0**exponent - 2.0**last)

    @property
    def fastest(self) -> float:
        """Seconds of the fastest size measured lately; 0 if none was."""
        return min(self._fresh().values(), default=0.0)

    def _fresh(self) -> dict[int, float]:
        return {known: mean for known, (mean, step) in self._seconds.items() if self._step - step < FRESH}


class Pace:
    """Sizes of steps.

    Attributes:
        smallest: tokens of the smallest step that prompts are computed in, half of which at least are theirs.

    Args:
        max_tokens: tokens of a step at most.
        max_rows: rows of a step at most.
        itl_target: seconds between tokens promised to interactive sequences; 0 for no promise.
    """

    def __init__(self, max_tokens: int, max_rows: int, itl_target: float) -> None:
        self._max_tokens = max_tokens
        self._max_rows = max_rows
        self._target = itl_target
        self.smallest = max(SMALLEST, max_tokens // 16)
        self._mixed = StepCosts()
        self._decode = StepCosts()

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
        depth = waiting_tokens / (DEEP_STEPS * self._max_tokens)
        allowed = self._reachable() * max(QUIET_SHARE + (1.0 - QUIET_SHARE) * depth, depth)
        size = self._max_tokens
        while size > self.smallest and self._mixed.seconds(size) > allowed:
            size = 2 ** (_exponent(size) - 1)
        if size - decodes < self.smallest // 2:
            size = 2 ** _exponent(decodes + self.smallest // 2)
        return min(size, self._max_tokens)

    def padded(self, size: int) -> int:
        """Tokens that a step of so many is computed as."""
        padded: int = 2 ** _exponent(size)
        return min(max(padded, self.smallest), self._max_tokens)

    def max_decodes(self) -> int:
        """Rows that may decode together within the target."""
        rows = self._max_rows
        if not self._target:
            return rows
        allowed = self._reachable()
        while rows > 1 and self._decode.seconds(rows) > allowed:
            rows = 2 ** (_exponent(rows) - 1)
        return rows

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds that a prompt of this many tokens takes in full steps."""
        return self._mixed.seconds(self._max_tokens) * tokens / self._max_tokens

    def _reachable(self) -> float:
        return max(self._target, SLOWEST * self._decode.fastest)


def _exponent(size: int) -> int:
    return max(size - 1, 0).bit_length()
