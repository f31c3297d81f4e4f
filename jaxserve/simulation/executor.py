"""An executor that computes nothing: a step takes as long as the roofline says, on a virtual clock.

Pages that are swapped or copied are moved before the step, one after another. Steps queue as they do on a device: one that is
submitted while another runs starts when that one ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxserve.clock import VirtualClock
from jaxserve.executor.base import Capabilities
from jaxserve.metrics.turn import ExecutorCounts
from jaxserve.simulation.costs import CostModel, Counts
from jaxserve.simulation.drafts import PlayedDrafts
from jaxserve.step.plan import Ints, MoveKind, Plan, StepResult


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """What a step did.

    Attributes:
        seconds: that it took.
        starts, ends: int64[R], tokens of each row in the cache before it and after it, drafts that were wrong not counted.
        draft_seconds: of them, those of a draft model.
    """

    plan: Plan
    seconds: float
    starts: Counts
    ends: Counts
    draft_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulatedHandle:
    clock: VirtualClock
    ends: float
    value: StepResult

    def choose(self, masks: Ints | None) -> None:
        """What a row may choose takes no time."""

    def result(self) -> StepResult:
        """Let time pass until the step is over; every token is 0."""
        self.clock.advance(max(self.ends - self.clock.now(), 0.0))
        return self.value


class SimulatedExecutor:
    """Runs plans in virtual time.

    Args:
        clock: moved by `submit` (host time) and by a handle's `result`; shared with the scheduler.
        host_s: see Calibration.
        observe: told of every step.
        drafts: what becomes of them; None if no step has any, or they are all to be taken for prompts.
    """

    def __init__(
        self,
        limits: Capabilities,
        costs: CostModel,
        clock: VirtualClock,
        host_s: float,
        observe: Callable[[PlayedStep], None],
        drafts: PlayedDrafts | None = None,
    ) -> None:
        self._limits = limits
        self._costs = costs
        self._clock = clock
        self._host_s = host_s
        self._observe = observe
        self._drafts = drafts
        self._copy_page_s = costs.copy_page_s(limits.page_size)
        self._free_at = clock.now()

    def capabilities(self) -> Capabilities:
        return self._limits

    def counts(self) -> ExecutorCounts:
        """Nothing: steps are not padded, and there is nothing to compile."""
        return ExecutorCounts()

    def submit(self, plan: Plan) -> SimulatedHandle:
        self._clock.advance(self._host_s)
        step, result = self._played(plan)
        self._free_at = max(self._free_at, self._clock.now()) + step.seconds
        self._observe(step)
        return SimulatedHandle(self._clock, self._free_at, result)

    def _played(self, plan: Plan) -> tuple[PlayedStep, StepResult]:
        counts = (plan.query_start[1:] - plan.query_start[:-1]).astype(np.int64)
        if self._drafts is None:
            lengths = plan.kv_length.astype(np.int64)
            seconds = self._costs.cost(counts, lengths).total + self._move_s(plan)
            result = StepResult.of_rows(plan, np.zeros(plan.num_rows, np.int32))
            return PlayedStep(plan, seconds, lengths - counts, lengths), result
        drafts, lengths = plan.num_drafts.astype(np.int64), self._drafts.lengths(plan)
        right = self._drafts.verify(plan)
        guessing = self._drafts.seconds(plan, counts, lengths)
        seconds = self._costs.cost(counts, lengths, drafts).total + self._move_s(plan) + guessing
        tokens = np.zeros((plan.num_rows, 1 + int(drafts.max(initial=0))), np.int32)
        result = StepResult(plan.step, tokens, plan.samples * (1 + right))
        return PlayedStep(plan, seconds, lengths - counts, lengths - drafts + right, guessing), result

    def _move_s(self, plan: Plan) -> float:
        """Seconds before the step can start: swaps in both directions share the link."""
        copies = sum(move.kind is MoveKind.COPY for move in plan.moves)
        return (len(plan.moves) - copies) * self._limits.swap_page_seconds + copies * self._copy_page_s
