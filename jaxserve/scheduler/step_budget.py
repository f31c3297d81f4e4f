"""How much a step may hold, so that interactive sequences get their tokens in time.

While an interactive sequence decodes, a step is made as large as the time between tokens that was promised (`itl_target_ms`)
allows, by what sizes are known to cost: half of it while no interactive prompt waits, all of it while four full steps of them do.
Beyond that steps grow with what waits: a queue that only grows helps nobody. And a step with interactive prompts may take three
times what its decodes would take alone: a promise that those nearly use up keeps nobody else waiting for ever. Sizes are those
that steps are computed as. Where the costs keep something waiting and steps are shorter than they may be, they grow all the same.

`StepCosts`: what a step of a size costs, learned from steps that were timed.

The cost of a size is the moving average of those measured; sizes not measured lately lie on lines between those that were, and
through the two nearest smaller ones. What is known of other sizes may not miss by far what a measurement allows (a larger step
takes no less, and no more a token), so that sizes which were much too slow once are tried again at once.

Whatever clocks say, costs are finite, positive and never fall with size: where two contradict each other the one that was
measured later holds, and no line is steeper than through nothing.

`Headroom`: sizes of steps that measurement allows, whatever was learned of their cost.

A learned cost is a belief: where it is wrong and keeps rows waiting, nothing may ever be measured that would tell. So what a step
took is also held against what it was allowed to take: one that was kept small and ended in time lets the next be one size larger,
one that took too long makes it one size smaller. A size that was too slow three times in a row is left alone for a while.
(Additive increase, multiplicative decrease in sizes that grow geometrically: Chiu and Jain, 1989.)

`BatchHeadroom`: what batch leaves to interactive requests, those that may come in the next moment included.

It costs batch little. A step with an interactive prompt is filled up to the size that it is padded to anyway, and no further:
nobody waits longer for a first token because of it. A step without interactive work is no larger than one beside interactive
decodes would be, for whoever comes next waits for its end. And some rows stay free: where a batch sequence must make way first,
that takes a step or two.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Sequence

from jaxserve.config.fields import SchedulerConfig

logger = logging.getLogger(__name__)

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


QUIET_SHARE = 0.5  # of the promised time that a step takes while no prompt waits
DEEP_STEPS = 4  # full steps of prompts that wait from which on all of the promised time is used
SLOWEST = 2.0  # a target below this many times the fastest step is out of reach,
INSTEAD = 4.0  # and so many times the fastest is kept
FAIR = 3.0  # times what its decodes would take alone, that a step with interactive prompts may take whatever was promised
SMALLEST = 16  # of the budget's sixteenth, at least: prompts always go on
LOG_SECONDS = 60.0  # of steps, between two log lines about sizes that were too small


class StepBudget:
    """Sizes of steps.

    Attributes:
        smallest: tokens of the smallest step that prompts are computed in, half of which at least are theirs.
        num_raised: times that a step was made larger than learned costs allow, because steps were shorter than they might be.

    Args:
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
        kept = self.kept
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
        kept, depth = self.kept, waiting_tokens / (DEEP_STEPS * self._max_tokens)
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
        kept = self.kept
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
                1e3 * self.kept, shown, what, learned,
            )  # fmt: skip
        return shown

    @property
    def kept(self) -> float:
        """Seconds between tokens that can be promised."""
        fastest = self._decode.fastest
        return self._target if self._target >= SLOWEST * fastest else INSTEAD * fastest


def _up_to(most: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Those of `sizes`, or four in every doubling, that are below `most`; and that."""
    known = sizes or sorted({quarters << shift >> 2 for shift in range(most.bit_length() + 1) for quarters in range(4, 8)})
    return (*(size for size in known if size < most), most)


LATELY_SECONDS = 10.0  # after the last interactive sequence, that another one is expected
SPARE = 8  # one row in so many is left free


class BatchHeadroom:
    """Where no time between tokens is promised to interactive sequences, and while none come, batch leaves nothing."""

    def __init__(self, config: SchedulerConfig, step_budget: StepBudget) -> None:
        self._config = config
        self._step_budget = step_budget
        self._seen = -math.inf
        self._expected = False

    def look(self, now: float, *, interactive: bool) -> None:
        """A step begins, with or without interactive sequences that run or wait."""
        if interactive:
            self._seen = now
        self._expected = self._config.itl_target > 0 and now - self._seen < LATELY_SECONDS

    @property
    def spare_rows(self) -> int:
        """Rows that batch does not start in."""
        return self._config.max_num_seqs // SPARE if self._expected else 0

    def most_tokens(self, taken: int, *, prompts: bool, decodes: bool) -> int:
        """Tokens of a step that batch may fill it up to.

        Args:
            taken: tokens of its interactive rows.
            prompts: whether prompts are among them.
            decodes: whether interactive sequences decode: then the step is no larger than they allow.
        """
        if self._expected and prompts:
            return self._step_budget.padded(taken)
        if self._expected and not decodes:
            return max(taken, self._step_budget.budget(0, 0))
        return self._config.max_num_batched_tokens
