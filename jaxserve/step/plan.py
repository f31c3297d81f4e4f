"""The plan of one step: the only message from scheduler to executor, and the result that comes back.

Frozen, complete and made of plain arrays, so that steps can be recorded, replayed, simulated and sent to other hosts. Arrays are
fresh copies: nothing else writes to them, whatever is still in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxserve.step.tasks import PROMPT_LOGPROBS

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

STATE_WORDS = 3
"""Of a row's, before the places that its states go to."""
NO_STATE = int(np.iinfo(np.int32).max)
"""A place that there is not."""


@dataclass(frozen=True, slots=True)
class RowStart:
    """State to load into a slot before the step: only for sequences whose sampling needs more than the row's numbers.

    Attributes:
        slot: the slot.
        prompt, output: tokens so far, for penalties.
        logit_bias: token id -> bias.
        allowed: the only tokens that may be chosen, or None.
    """

    slot: int
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    logit_bias: Mapping[int, float]
    allowed: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Readout:
    """What is read of prompt tokens in this step, besides samples (`step.tasks`).

    Attributes:
        row: the row.
        offset: the first of the row's tokens that is read.
        values: a number for it and each of the next ones: where log-probabilities are read, the token that follows.
        reader: what reads.
    """

    row: int
    offset: int
    values: tuple[int, ...]
    reader: str = PROMPT_LOGPROBS


class MoveKind(StrEnum):
    """From where to where a page goes."""

    COPY = "copy"  # from a page to a page
    TO_TIER = "to_tier"  # from a page to a swap slot
    FROM_TIER = "from_tier"  # from a swap slot to a page


class PageMove(NamedTuple):
    """One page's content goes from `source` to `destination`: pages or swap slots, as the kind says. The source keeps it."""

    kind: MoveKind
    source: int
    destination: int


class AdapterLoad(NamedTuple):
    """The adapter with this key, which the executor has in memory, goes into a slot."""

    slot: int
    key: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step computes: R rows of T tokens in all.

    Attributes:
        step: number of the step, counted from 0.
        ids: the sequence of each row.
        slots: int32[R], each row's slot in the executor's per-sequence state.
        tokens: int32[T], input tokens row after row; negative ones are on the device only (`step.codes`).
            A row that begins with one goes on where that slot's sequence is, which is behind `kv_length` if steps in flight
            refuse drafts: the plan need not wait for them.
        query_start: int32[R+1], row r computes tokens query_start[r]:query_start[r+1].
        kv_length: int32[R], tokens of the row in the cache after the step, if no draft is refused by steps in flight.
        page_table: int32[R,M*groups], pages of each row, padded with the null page; M covers the longest row. The pages of the
            groups of layers follow one another; the null page stands where no token to come sees anything.
        samples: bool[R], whether the row chooses a next token.
        num_drafts: int32[R], how many of the row's last tokens are drafts: guesses at what the model chooses. The row chooses a
            token after each up to the first wrong one. 0 if it does not sample.
        sampling: int32[R,W], the words of every row's options (RowOptions).
        starts: slots to load before the step.
        readouts: what is read of prompt tokens.
        moves: of pages, one after another, each as if those before it were done, and all before the step reads or writes.
        adapters: int32[R], the executor's slot with each row's adapter: rows of one slot after those of the slot before it, those
            without an adapter, -1, behind all; None if no row has one.
        adapter_loads: adapters that come into their slots before the step.
        states: int32[R,STATE_WORDS+W], of each row: the place of the recurrent state that it goes on from, if no draft is refused
            by steps in flight (one place earlier for each that is), 0 for the empty one; where a snapshot of it goes, and behind
            how many of the row's tokens, 0 for none; and the places of the states after its last W tokens, NO_STATE where one is
            not wanted. None for a model without.
        guesses: how many tokens the draft model guesses of every row behind the one that it chooses, once it has computed what
            the step computes; None if it does not even do that.
    """

    step: int
    ids: tuple[str, ...]
    slots: Ints
    tokens: Ints
    query_start: Ints
    kv_length: Ints
    page_table: Ints
    samples: Bools
    num_drafts: Ints
    sampling: Ints
    starts: tuple[RowStart, ...] = ()
    readouts: tuple[Readout, ...] = ()
    moves: tuple[PageMove, ...] = ()
    guesses: int | None = None
    adapters: Ints | None = None
    states: Ints | None = None
    adapter_loads: tuple[AdapterLoad, ...] = ()

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.ids)

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.tokens)

    @property
    def longest_row(self) -> int:
        """Tokens of the row that has most."""
        return int(np.diff(self.query_start).max(initial=0))


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """Log-probabilities of T chosen tokens: chosen float32[T], rank int32[T] (1 is likeliest), top_ids and top [T,C]."""

    chosen: Floats
    rank: Ints
    top_ids: Ints
    top: Floats


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of N tokens: one of these.

    Attributes:
        logprobs: of the tokens that follow.
        vectors: float32[N,...]; one where the reader sums.
        num_tokens: that were read, N or more.
    """

    logprobs: LogprobRows | None = None
    vectors: Floats | None = None
    num_tokens: int = 0

    @property
    def is_finite(self) -> bool:
        """Whether all of it could be computed."""
        read = (self.vectors, None if self.logprobs is None else self.logprobs.chosen)
        return all(numbers is None or bool(np.isfinite(numbers).all()) for numbers in read)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step produced.

    Attributes:
        step: number of the plan.
        tokens: int32[R,N], the tokens each row chose, N of them at most (one without drafts); -1 if it has no valid logits.
        num_tokens: int32[R], how many there are: 0 where the row does not sample, else the drafts that were right and one more.
        logprobs: of tokens.reshape(R*N), if any row wanted them.
        readings: what was read, in the order of the plan's `readouts`.
    """

    step: int
    tokens: Ints
    num_tokens: Ints
    logprobs: LogprobRows | None = None
    readings: tuple[Reading, ...] = ()

    def num_accepted(self, plan: Plan) -> int:
        """How many of the plan's drafts were right."""
        drafted = plan.num_drafts > 0
        return int((self.num_tokens[drafted] - 1).sum()) if drafted.any() else 0

    @classmethod
    def of_rows(cls, plan: Plan, tokens: Ints, readings: tuple[Reading, ...] = ()) -> StepResult:
        """The result of a plan without drafts, whose rows chose these tokens int32[R]."""
        return cls(plan.step, tokens[:, None], plan.samples.astype(np.int32), readings=readings)
