"""The plan of one step: the only message from scheduler to executor, and the result that comes back.

Frozen, complete and made of plain arrays, so that steps can be recorded, replayed, simulated and sent to other hosts. Arrays are
fresh copies: nothing else writes to them, whatever is still in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


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
class PromptScore:
    """Log-probabilities wanted for prompt tokens in this step.

    Attributes:
        row: the row.
        offset: the first of the row's tokens whose successor is scored.
        targets: the prompt tokens that follow it and the next ones.
    """

    row: int
    offset: int
    targets: tuple[int, ...]


@dataclass(slots=True)
class PageMoves:
    """Pages to move before a step, as in its plan."""

    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step computes: R rows of T tokens in all.

    Attributes:
        step: number of the step, counted from 0.
        ids: the sequence of each row.
        slots: int32[R], each row's slot in the executor's per-sequence state.
        tokens: int32[T], input tokens row after row; a negative value -1-s stands for the token last sampled in slot s.
        query_start: int32[R+1], row r computes tokens query_start[r]:query_start[r+1].
        kv_length: int32[R], tokens of the row in the cache after the step.
        page_table: int32[R,M*groups], pages of each row, padded with the null page; M covers the longest row. The pages of the
            groups of layers follow one another; the null page stands where no token to come sees anything.
        samples: bool[R], whether the row chooses a next token.
        sampling: int32[R,W], the words of every row's options (RowOptions).
        starts: slots to load before the step.
        scores: prompt log-probabilities wanted.
        swap_out: (page, place) pairs: pages to write to places of the swap space before anything else.
        swap_in: (place, page) pairs: places to read back into pages, after all of `swap_out`.
        copies: (source, destination) pages to copy on the device, after the swaps and before the step writes anything; no
            source is a destination.
    """

    step: int
    ids: tuple[str, ...]
    slots: Ints
    tokens: Ints
    query_start: Ints
    kv_length: Ints
    page_table: Ints
    samples: Bools
    sampling: Ints
    starts: tuple[RowStart, ...] = ()
    scores: tuple[PromptScore, ...] = ()
    swap_out: tuple[tuple[int, int], ...] = ()
    swap_in: tuple[tuple[int, int], ...] = ()
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.ids)

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """Log-probabilities of chosen tokens: chosen float32[N], rank int32[N] (1 is likeliest), top_ids and top [N,C]."""

    chosen: Floats
    rank: Ints
    top_ids: Ints
    top: Floats


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step produced.

    Attributes:
        step: number of the plan.
        tokens: int32[R], the token each row chose, -1 if it has no valid logits; meaningless where its row does not sample.
        logprobs: of those tokens, if any row wanted them.
        scores: of prompt tokens, in the order of the plan's `scores`.
    """

    step: int
    tokens: Ints
    logprobs: LogprobRows | None = None
    scores: tuple[LogprobRows, ...] = ()
