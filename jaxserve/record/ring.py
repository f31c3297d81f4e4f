"""The last steps of a running engine, kept by reference: nothing is copied until somebody asks for a recording."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from jaxserve.record.recording import RecordedSequence, RecordedStep, RecordHeader, Recording
from jaxserve.scheduler.request import Sequence
from jaxserve.step.plan import Ints, Plan, StepResult

MAX_BYTES = 256 * 2**20  # page tables of many long sequences take megabytes a step


@dataclass(slots=True)
class _Step:
    plan: Plan
    sequences: tuple[Sequence, ...]
    num_bytes: int
    masks: Ints | None = None
    result: StepResult | None = None
    seconds: float | None = None


class StepRing:
    """Keeps plans and results of the last steps, and the sequences in them for as long as they occur.

    Plans and results never change, and a sequence's tokens are only appended to, so references are enough.

    Args:
        max_bytes: of the plans' arrays together; beyond it fewer steps are kept, but always the last one.
    """

    def __init__(self, capacity: int, max_bytes: int = MAX_BYTES) -> None:
        self.capacity = capacity
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._steps: deque[_Step] = deque()

    def planned(self, plan: Plan, sequences: Mapping[str, Sequence]) -> None:
        """Keep a plan before it is submitted. `sequences` are the scheduler's, by id; every row's is among them."""
        num_bytes = plan.page_table.nbytes + plan.tokens.nbytes + plan.sampling.nbytes  # the rest is small
        self._steps.append(_Step(plan, _look_up(sequences, plan.ids), num_bytes))
        self._num_bytes += num_bytes
        while len(self._steps) > self.capacity or (self._num_bytes > self._max_bytes and len(self._steps) > 1):
            self._num_bytes -= self._steps.popleft().num_bytes

    def masked(self, plan: Plan, masks: Ints) -> None:
        """Keep the masks of the latest plan."""
        if self._steps and self._steps[-1].plan is plan:
            self._steps[-1].masks = masks

    def collected(self, plan: Plan, result: StepResult, seconds: float) -> None:
        """Keep the result of a plan; nothing happens if its step is no longer kept. For `seconds` see RecordedStep."""
        for step in reversed(self._steps):  # the last one, or the one before it
            if step.plan is plan:
                step.result, step.seconds = result, seconds
                return

    def recording(self, header: RecordHeader, reason: str, created: float) -> Recording:
        """The steps kept now, complete in themselves. For `reason` and `created` see Recording."""
        places: dict[int, int] = {}
        sequences: list[RecordedSequence] = []
        steps = []
        for step in self._steps:
            for sequence in step.sequences:
                if id(sequence) not in places:
                    places[id(sequence)] = len(sequences)
                    sequences.append(RecordedSequence(sequence.request, np.array(sequence.tokens, np.int32)))
            rows = tuple(places[id(sequence)] for sequence in step.sequences)
            steps.append(RecordedStep(step.plan, rows, step.result, step.seconds, step.masks))
        return Recording(header=header, reason=reason, created=created, sequences=tuple(sequences), steps=tuple(steps))


def _look_up(sequences: Mapping[str, Sequence], ids: tuple[str, ...]) -> tuple[Sequence, ...]:
    """The sequences of these ids. `itemgetter` takes less than half of a comprehension's time, and this runs at every step."""
    if len(ids) < 2:  # it takes at least one, and gives one without a tuple
        return tuple([sequences[name] for name in ids])
    found: tuple[Sequence, ...] = itemgetter(*ids)(sequences)
    return found
