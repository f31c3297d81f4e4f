"""From the packed array of a step to its StepResult: the only device-to-host copy of a step."""

from __future__ import annotations

import jax
import numpy as np

from jaxserve.sampling.options import NUM_LOGPROBS, RowOptions
from jaxserve.sampling.params import MAX_LOGPROBS
from jaxserve.step.plan import Ints, LogprobRows, Plan, StepResult


class LocalHandle:
    """A step running on this process's devices.

    Attributes:
        collected: whether its result was asked for.

    Args:
        plan: what runs.
        packed: its packed rows.
        scored: of prompt tokens, if any are scored.
        columns: of the packed alternatives that are real: fewer in a tiny vocabulary.
        options: what the words of a row are.
        far: whether the devices have memory of their own, from which a copy to the host is to be on its way early.
    """

    def __init__(
        self, plan: Plan, packed: jax.Array, scored: jax.Array | None, columns: int, options: RowOptions, *, far: bool
    ) -> None:
        self._options = options
        self._columns = columns
        self._plan = plan
        self._packed = packed
        self._scored = scored
        self.collected = False
        for array in (packed, scored):
            if far and array is not None:
                array.copy_to_host_async()

    def result(self) -> StepResult:
        """Wait for the step and unpack its tokens and log-probabilities."""
        self.collected = True
        plan = self._plan
        packed = np.asarray(self._packed)[: plan.num_rows]
        wanted = bool((plan.samples & (self._options.column(plan.sampling, NUM_LOGPROBS) >= 0)).any())
        logprobs = unpack_logprobs(packed[:, 1:], self._columns) if wanted else None
        return StepResult(plan.step, packed[:, 0], logprobs, self._scores())

    def _scores(self) -> tuple[LogprobRows, ...]:
        if self._scored is None:
            return ()
        packed = np.asarray(self._scored)
        scores, start = [], 0
        for score in self._plan.scores:
            end = start + len(score.targets)
            scores.append(unpack_logprobs(packed[start:end], self._columns))
            start = end
        return tuple(scores)


def unpack_logprobs(packed: Ints, columns: int) -> LogprobRows:
    """int32[N,2+2*MAX_LOGPROBS] -> log-probabilities of N tokens, `columns` alternatives each."""
    floats = packed.view(np.float32)
    ids, top = 2, 2 + MAX_LOGPROBS
    return LogprobRows(floats[:, 0], packed[:, 1], packed[:, ids : ids + columns], floats[:, top : top + columns])
