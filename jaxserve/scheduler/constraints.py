"""Sequences that may choose only some tokens: the masks of a step.

The mask of a row follows from the token before, which the step in flight chooses. So a step is planned and submitted like any
other, and its rows get their masks when the step before it is collected: until then the device computes what comes before the
choice, and nobody waits.

Where only one token may come, and then another one, those after the first are computed behind it as one chunk: the choice of each
is known.

A row with drafts gets a mask for each token that it may choose: behind a draft as if that were right.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from typing import NamedTuple, Protocol

import numpy as np

from jaxserve.clock import Clock
from jaxserve.errors import InvalidRequestError, JaxserveError, is_containable
from jaxserve.scheduler.containment import Containment
from jaxserve.scheduler.request import Constraint, Sequence, Status
from jaxserve.step.plan import Ints, Plan
from jaxserve.types import MASK_BITS

PHASE = "computing its mask"
MAX_FORCED = 63  # tokens behind a chosen one that are computed at once, at most

Rows = ListOf[tuple[int, Sequence]]
"""Constrained sequences of a step that choose a token, with their rows."""


class Masks(NamedTuple):
    """Masks of a step.

    Attributes:
        words: int32[R*N,W], see `StepHandle.choose`.
        failed: sequences that may choose nothing.
        dead_ends: by row, how many tokens it may choose where its drafts lead to a place at which it may choose nothing; and why.
    """

    words: Ints
    failed: list[tuple[Sequence, JaxserveError]]
    dead_ends: dict[int, tuple[int, JaxserveError]]


class Masker(Protocol):
    """Makes masks.

    Attributes:
        words: of a mask: V / 32, rounded up.
    """

    words: int

    def fill(self, rows: ListOf[tuple[int, Constraint]], masks: Ints) -> dict[int, JaxserveError]:
        """Write some of the masks int32[count,words], those named; returns an error for each that allows nothing."""
        ...


class StepMasks:
    """Makes the masks of steps, and counts.

    Attributes:
        num_rows: that got one.
        seconds: that it took.
        num_forced: tokens that were not chosen, because one alone was left.

    Args:
        masker: None if no sequence is ever constrained.
        containment: takes the sequences whose constraint raises.
    """

    def __init__(self, masker: Masker | None, clock: Clock, containment: Containment | None = None) -> None:
        self._masker = masker
        self._clock = clock
        self._containment = containment or Containment()
        self.num_rows = self.num_forced = 0
        self.seconds = 0.0

    def rows(self, plan: Plan, chosen: ListOf[tuple[Sequence, int]]) -> Rows:
        """The rows of a plan that get masks."""
        if self._masker is None:
            return ()
        return [(row, one) for row, (one, _) in enumerate(chosen) if one.constraint is not None and plan.samples[row]]

    def make(self, plan: Plan, rows: Rows) -> Masks:
        """The masks of a plan. Tokens that are forced are noted.

        The other rows may choose whatever they like, and those of sequences that ended meanwhile.
        """
        assert self._masker is not None
        began = self._clock.now()
        width = 1 + int(plan.num_drafts.max(initial=0))
        words = np.full((plan.num_rows * width, self._masker.words), -1, np.int32)
        alive = [(row, one) for row, one in rows if one.status is not Status.FINISHED]
        walks = [_Walk(row * width, one, one.constraint, _drafts(plan, row)) for row, one in alive if one.constraint is not None]
        errors = self._fill(self._masker, walks, words)
        words[list(errors)] = -1
        failed = [(one, errors[row * width]) for row, one in alive if row * width in errors]
        dead_ends = {place // width: (place % width, error) for place, error in errors.items() if place % width}
        for row, one in alive:
            if one.status is Status.RUNNING and one.takes_forced and int(np.bitwise_count(words[row * width]).sum()) == 1:
                with self._containment.of(one, PHASE):
                    one.forced = _forced_behind(one)
        self.num_rows += len(rows)
        self.seconds += self._clock.now() - began
        return Masks(words, failed, dead_ends)

    def _fill(self, masker: Masker, walks: ListOf[_Walk], words: Ints) -> dict[int, JaxserveError]:
        """Make the masks of rows, all of one place at once, as far as drafts may be chosen; an error for each dead end.

        A constraint that raises fails its sequence alone.
        """
        backs: list[tuple[Sequence, Callable[[], None]]] = []
        for walk in walks:
            if walk.drafts:
                with self._containment.of(walk.sequence, PHASE):
                    backs.append((walk.sequence, walk.constraint.checkpoint()))
        errors: dict[int, JaxserveError] = {}
        place = 0
        while walks:
            errors |= self._fill_place(masker, walks, place, words)
            following = []
            for walk in walks:
                with self._containment.of(walk.sequence, PHASE):
                    if walk.first + place not in errors and _goes_on(walk, place, words[walk.first + place]):
                        following.append(walk)
            walks = following
            place += 1
        for sequence, back in backs:
            with self._containment.of(sequence, PHASE):
                back()
        return errors

    def _fill_place(self, masker: Masker, walks: ListOf[_Walk], place: int, words: Ints) -> dict[int, JaxserveError]:
        rows = [(walk.first + place, walk.constraint) for walk in walks]
        try:
            return masker.fill(rows, words)
        except BaseException as error:
            if not is_containable(error):
                raise
        errors: dict[int, JaxserveError] = {}
        for walk, row in zip(walks, rows, strict=True):  # one after another, to find the constraint that raises
            try:
                errors |= masker.fill([row], words)
            except BaseException as error:
                if not is_containable(error):
                    raise
                errors[row[0]] = self._containment.fail(walk.sequence, error, PHASE)
        return errors


class _Walk(NamedTuple):
    """A row's masks: the first of them, and the drafts that the others are behind."""

    first: int
    sequence: Sequence
    constraint: Constraint
    drafts: ListOf[int]


def _drafts(plan: Plan, row: int) -> list[int]:
    end, count = int(plan.query_start[row + 1]), int(plan.num_drafts[row])
    drafts: list[int] = plan.tokens[end - count : end].tolist()
    return drafts


def _goes_on(walk: _Walk, place: int, mask: Ints) -> bool:
    """Whether a token may be chosen behind a draft; if so the constraint is behind it."""
    if place == len(walk.drafts):
        return False
    draft = walk.drafts[place]
    if draft in walk.sequence.stop_token_ids or not int(mask[draft // MASK_BITS]) >> draft % MASK_BITS & 1:
        return False
    return walk.constraint.accept(draft)


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
