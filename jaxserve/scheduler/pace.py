"""How much a step may hold, so that interactive sequences get their tokens in time.

While an interactive sequence decodes, a step is made as large as the time between tokens that was promised (`itl_target_ms`)
allows, by what sizes are known to cost: half of it while no interactive prompt waits, all of it while four full steps of them do.
Beyond that steps grow with what waits: a queue that only grows helps nobody. And a step with interactive prompts may take three
times what its decodes would take alone: a promise that those nearly use up keeps nobody else waiting for ever. Sizes are those
that steps are computed as. Where the costs keep something waiting and steps are shorter than they may be, they grow all the same.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from jaxserve.scheduler.headroom import Headroom
from jaxserve.scheduler.step_costs import StepCosts, padded

logger = logging.getLogger(__name__)

QUIET_SHARE = 0.5  # of the promised time that a step takes while no prompt waits
DEEP_STEPS = 4  # full steps of prompts that wait from which on all of the promised time is used
SLOWEST = 2.0  # a target below this many times the fastest step is out of reach,
INSTEAD = 4.0  # and so many times the fastest is kept
FAIR = 3.0  # times what its decodes would take alone, that a step with interactive prompts may take whatever was promised
SMALLEST = 16  # of the budget's sixteenth, at least: prompts always go on
LOG_SECONDS = 60.0  # of steps, between two log lines about sizes that were too small


class Pace:
    """Sizes of steps.

    Attributes:
        smallest: tokens of the smallest step that prompts are computed in, half of which at least are theirs.
        num_raised: times that a step was made larger than learned costs allow, because steps were shorter than they might be.

    Args:
        max_tokens: tokens of a step at most.
        max_rows: rows of a step at most.
        itl_target: seconds between tokens promised to interactive sequences; 0 for no promise.
        sizes: tokens that steps with prompts are computed as, ascending; powers of two by default.
    """

    def __init__(self, max_tokens: int, max_rows: int, itl_target: float, sizes: Sequence[int] = ()) -> None:
        self._max_tokens = max_tokens
        self._target = itl_target
        self._sizes = _up_to(max_tokens, sizes or [2**exponent for exponent in range(max_tokens.bit_length())])
        self._rows = _up_to(max_rows, ())
        self.smallest = max(SMALLEST, max_tokens // 16)
        self._mixed = StepCosts(self._sizes)
        self._decode = StepCosts(self._rows)
        self._more_tokens = Headroom(self._sizes)
        self._more_rows = Headroom(self._rows)
        self.num_raised = 0
        self._time = 0.0  # that steps took
        self._log_at = 0.0

    def observe(
        self,
        rows: int,
        tokens: int,
        seconds: float,
        *,
        allowed: float = 0.0,
        rows_held: bool = False,
        tokens_held: bool = False,
    ) -> None:
        """A step was measured.

        It might have taken `allowed` seconds (0: its tokens were not bounded by time); `rows_held` and `tokens_held` tell whether
        sequences, or tokens, were left out of it for no other reason than their cost.
        """
        decode = rows == tokens
        (self._decode if decode else self._mixed).observe(tokens, seconds)
        if not self._target or not math.isfinite(seconds):
            return
        self._time += max(seconds, 0.0)
        kept = self._kept()
        if decode or seconds <= kept:  # a step with prompts that took too long tells nothing of its rows
            self._more_rows.observe(rows, seconds, kept, held=rows_held)
        if allowed and not decode:
            self._more_tokens.observe(tokens, seconds, allowed, held=tokens_held)

    def budget(self, decodes: int, waiting_tokens: int) -> int:
        """Tokens of the next step while interactive sequences decode.

        Args:
            decodes: their tokens, which are always in it.
            waiting_tokens: prompt tokens of interactive sequences that could be computed now; batch is in no hurry.
        """
        if not self._target:
            return self._max_tokens
        allowed = self.allowed(decodes, waiting_tokens)
        least = self.padded(max(self.smallest, decodes + self.smallest // 2))
        learned = next(size for size in reversed(self._sizes) if size == least or self._mixed.seconds(size) <= allowed)
        return self._raised(learned, self._more_tokens.bound, "tokens")

    def allowed(self, decodes: int, waiting_tokens: int) -> float:
        """Seconds that the step may take that `budget` is asked for; 0 if nothing is promised."""
        if not self._target:
            return 0.0
        kept, depth = self._kept(), waiting_tokens / (DEEP_STEPS * self._max_tokens)
        quiet = kept * (QUIET_SHARE + (1.0 - QUIET_SHARE) * depth)
        if not waiting_tokens:
            return quiet
        alone = self._decode.seconds(decodes) or self._mixed.seconds(decodes)
        return max(quiet, FAIR * alone, max(kept, FAIR * alone) * depth)

    def padded(self, size: int) -> int:
        """Tokens that a step of so many is computed as."""
        return padded(max(size, self.smallest), self._sizes)

    def max_decodes(self) -> int:
        """Rows that may decode together within the target."""
        if not self._target:
            return self._rows[-1]
        kept = self._kept()
        learned = next((rows for rows in reversed(self._rows) if self._decode.seconds(rows) <= kept), 1)
        return self._raised(learned, self._more_rows.bound, "rows")

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds that a prompt of this many tokens takes in full steps."""
        return self._mixed.seconds(self._max_tokens) * tokens / self._max_tokens

    def _raised(self, learned: int, shown: int, what: str) -> int:
        """The larger of a size that learned costs allow and one that measurement does; told where the costs are wrong."""
        if shown <= learned:
            return learned
        self.num_raised += 1
        if self._time >= self._log_at:
            self._log_at = self._time + LOG_SECONDS
            logger.warning(
                "steps are shorter than the %.0f ms they may take, so they get up to %d %s where %d were learned to fit",
                1e3 * self._kept(), shown, what, learned,
            )  # fmt: skip
        return shown

    def _kept(self) -> float:
        """Seconds between tokens that can be promised."""
        fastest = self._decode.fastest
        return self._target if self._target >= SLOWEST * fastest else INSTEAD * fastest


def _up_to(most: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Those of `sizes`, or four in every doubling, that are below `most`; and that."""
    known = sizes or sorted({quarters << shift >> 2 for shift in range(most.bit_length() + 1) for quarters in range(4, 8)})
    return (*(size for size in known if size < most), most)
