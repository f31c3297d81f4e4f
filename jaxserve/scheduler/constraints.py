"""Sequences that may choose only some tokens: the masks of a step.

The mask of a row follows from the token before, which the step in flight chooses. So a step is planned and submitted like any
other, and its rows get their masks when the step before it is collected: until then the device computes what comes before the
choice, and nobody waits.

Where only one token may come, and then another one, those after the first are computed behind it as one chunk: the choice of each
is known.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from typing import Protocol

import numpy as np

from jaxserve.clock import Clock
from jaxserve.errors import InvalidRequestError, JaxserveError
from jaxserve.scheduler.request import Constraint, Sequence, Status
from jaxserve.step.plan import Ints, Plan

MAX_FORCED = 63  # tokens behind a chosen one that are computed at once, at most

Rows = ListOf[tuple[int, Sequence]]
"""Constrained sequences of a step that choose a token, with their rows."""


class Masker(Protocol):
    """Makes masks.

    Attributes:
        words: of a mask: V / 32, rounded up.
    """

    words: int

    def fill(self, rows: ListOf[tuple[int, Constraint]], masks: Ints) -> dict[int, JaxserveError]:
        """Write the masks of some rows of int32[R,words]; returns an error for each row that may choose nothing."""
        ...


class StepMasks:
    """Makes the masks of steps, and counts.

    Attributes:
        num_rows: that got one.
        seconds: that it took.
        num_forced: tokens that were not chosen, because one alone was left.

    Args:
        masker: None if no sequence is ever constrained.
    """

    def __init__(self, masker: Masker | None, clock: Clock) -> None:
        self._masker = masker
        self._clock = clock
        self.num_rows = self.num_forced = 0
        self.seconds = 0.0

    def rows(self, plan: Plan, chosen: ListOf[tuple[Sequence, int]]) -> Rows:
        """The rows of a plan that get masks."""
        if self._masker is None:
            return ()
        return [(row, one) for row, (one, _) in enumerate(chosen) if one.constraint is not None and plan.samples[row]]

    def make(self, plan: Plan, rows: Rows) -> tuple[Ints, list[tuple[Sequence, JaxserveError]]]:
        """Masks int32[R,words], and the sequences that may choose nothing. Tokens that are forced are noted.

        The other rows may choose whatever they like, and those of sequences that ended meanwhile.
        """
        assert self._masker is not None
        began = self._clock.now()
        masks = np.full((plan.num_rows, self._masker.words), -1, np.int32)
        alive = [(row, sequence) for row, sequence in rows if sequence.status is not Status.FINISHED]
        errors = self._masker.fill([(row, one.constraint) for row, one in alive if one.constraint is not None], masks)
        for row, sequence in alive:
            if row in errors:
                masks[row] = -1
            elif sequence.status is Status.RUNNING and sequence.takes_forced and int(np.bitwise_count(masks[row]).sum()) == 1:
                sequence.forced = _forced_behind(sequence)
        self.num_rows += len(rows)
        self.seconds += self._clock.now() - began
        return masks, [(sequence, errors[row]) for row, sequence in alive if row in errors]


def behind(constraint: Constraint, output: ListOf[int]) -> Constraint:
    """The constraint of a sequence that said `output` already. Raises InvalidRequestError if nothing may follow."""
    for token in output:
        if not constraint.accept(token):
            raise InvalidRequestError("output ends by its grammar: nothing may follow", param="output")
    return constraint


def _forced_behind(sequence: Sequence) -> tuple[int, ...]:
    """Tokens that must follow the one that its row chooses, up to its end."""
    room = sequence.limit - len(sequence.tokens) - 1
    if sequence.constraint is None or room <= 0:
        return ()
    forced = sequence.constraint.forced()[1 : 1 + min(room, MAX_FORCED)]
    ends = next((place for place, token in enumerate(forced) if token in sequence.stop_token_ids), len(forced))
    return tuple(forced[:ends])
