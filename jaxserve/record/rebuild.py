"""Makes recorded plans runnable on an executor that saw nothing of the steps before them.

A recording may begin in mid-stream: its first plans read keys and values, last tokens and sampling state that earlier steps left
behind. Everything of that follows from the tokens of the sequences, so it is made again just before it is needed.

Keys and values that a window has passed were given back, yet those in the window were computed from them. They are made again in
spare pages behind the recorded ones, which are used in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from jaxserve.config.windows import first_column, touched_pages
from jaxserve.executor.base import Capabilities
from jaxserve.record.recording import RecordedSequence, RecordedStep
from jaxserve.step.plan import Bools, Ints, MoveKind, Plan, RowStart

_UNKNOWN_TOKEN = 0


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """What to run for a recorded step.

    Attributes:
        preludes: plans that fill the cache first; they choose no token.
        plan: the recorded plan, with tokens and sampling state in place of what was on the device.
        comparable: bool[R], rows whose input is that of the recording.
    """

    preludes: tuple[Plan, ...]
    plan: Plan
    comparable: Bools


class Rebuilder:
    """Knows what an executor holds that ran the prepared steps so far. Every step is to be prepared, in order.

    Args:
        recorded: limits of the executor that was recorded.
        max_tokens: of a step.
    """

    def __init__(self, sequences: Sequence[RecordedSequence], recorded: Capabilities, max_tokens: int) -> None:
        self._sequences = sequences
        self._page_size = recorded.page_size
        self._windows = recorded.windows
        self._max_tokens = max_tokens
        # Pages, and swap slots, that hold what they held in the recording.
        self._written: Bools = np.zeros(recorded.num_pages, np.bool_)
        self._swapped: Bools = np.zeros(recorded.swap_slots, np.bool_)
        spans = spare_spans(recorded, max_tokens)
        ends = recorded.num_pages + np.cumsum([0, *spans])
        self._spare = [np.arange(end - span, end) for span, end in zip(spans, ends[1:].tolist(), strict=True)]  # by group
        # Slots that hold the last token and the sampling state of their sequence: the first sample of the recording in a slot
        # provides them, and whoever gets the slot later brings its own.
        self._sampled: set[int] = set()

    def prepare(self, step: RecordedStep) -> PreparedStep:
        plan = self._with_known_moves(step.plan)
        preludes = self._preludes(plan, step.sequences)
        if preludes:  # pages are moved before anything is written: by the first plan
            preludes[0] = replace(preludes[0], moves=plan.moves)
            plan = replace(plan, moves=())
        tokens, comparable = self._tokens(step)
        plan = replace(plan, tokens=tokens, starts=plan.starts + self._starts(step))
        self._sampled.update(plan.slots[plan.samples].tolist())
        return PreparedStep(tuple(preludes), plan, comparable)

    def _with_known_moves(self, plan: Plan) -> Plan:
        """The plan without the moves of pages that were written before the recording: preludes write where those went."""
        known = []
        for move in plan.moves:
            source = self._swapped if move.kind is MoveKind.FROM_TIER else self._written
            destination = self._swapped if move.kind is MoveKind.TO_TIER else self._written
            destination[move.destination] = source[move.source]
            if source[move.source]:
                known.append(move)
        return replace(plan, moves=tuple(known)) if plan.moves else plan

    def _preludes(self, plan: Plan, sequences: Sequence[int]) -> list[Plan]:
        """Plans that compute what rows read and nobody wrote: positions before a row's own tokens, in the row's pages.

        A page may be shared, also with a row of this plan that is only now writing it; then it is written twice, with equal
        values, for they follow from the same tokens.
        """
        size = self._page_size
        starts = (plan.kv_length - np.diff(plan.query_start)).tolist()
        now = np.zeros_like(self._written)  # pages that this plan writes into
        begun = np.zeros_like(self._written)  # of these, the ones that hold nothing before
        for row, (start, end) in enumerate(zip(starts, plan.kv_length.tolist(), strict=True)):
            table = self._table(plan, row)
            now[table[start // size : _pages(end, size)]] = True
            begun[table[_pages(start, size) : _pages(end, size)]] = True
        preludes = []
        for row, start in enumerate(starts):
            pages = self._table(plan, row)[: _pages(start, size)]
            held = pages != 0
            missing = np.flatnonzero((held & ~(self._written[pages] | begun[pages])).any(axis=1))
            if len(missing):  # each is computed from all that it sees, so that must hold its tokens by then
                first = self._first(held & self._written[pages] & ~now[pages], int(missing[0]))
                end = min(start, (int(missing[-1]) + 1) * size)
                preludes += self._compute(plan, row, self._sequences[sequences[row]].tokens, first * size, end)
                self._written[pages[held]] = True
        self._written |= now
        return preludes

    def _table(self, plan: Plan, row: int) -> Ints:
        """The row's pages [column, group]."""
        table: Ints = plan.page_table[row].reshape(-1, len(self._windows))
        return table

    def _first(self, ready: Bools, missing: int) -> int:
        """The last column, of those up to the missing one, whose first token finds all pages ready that it sees."""
        size = self._page_size

        def finds_all(column: int) -> bool:
            return all(
                ready[first_column(window, column * size, size) : column, group].all()
                for group, window in enumerate(self._windows)
            )

        return next(column for column in range(missing, -1, -1) if finds_all(column))

    def _compute(self, plan: Plan, row: int, tokens: Ints, first: int, end: int) -> list[Plan]:
        one = slice(row, row + 1)
        table = self._table(plan, row).copy()
        columns = np.arange(len(table))
        for group, spare in enumerate(self._spare):
            given_back = (table[:, group] == 0) & (columns >= first // self._page_size) & (columns * self._page_size < end)
            if len(spare):
                table[given_back, group] = spare[columns[given_back] % len(spare)]
        plans = []
        for start in range(first, end, self._max_tokens):
            stop = min(start + self._max_tokens, end)
            plans.append(
                Plan(
                    step=plan.step,
                    ids=plan.ids[one],
                    slots=plan.slots[one],
                    tokens=tokens[start:stop],
                    query_start=np.array([0, stop - start], np.int32),
                    kv_length=np.array([stop], np.int32),
                    page_table=table.reshape(1, -1),
                    samples=np.zeros(1, np.bool_),
                    num_drafts=np.zeros(1, np.int32),
                    sampling=plan.sampling[one],
                )
            )
        return plans

    def _tokens(self, step: RecordedStep) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """The plan's tokens int32[T], known ones for those that steps before the recording sampled; and `comparable`.

        A token is unknown if it ended its sequence before the host kept it. Nobody saw what came after it.
        """
        plan = step.plan
        tokens, comparable = plan.tokens.copy(), np.ones(plan.num_rows, np.bool_)
        for index in np.flatnonzero(tokens < 0).tolist():
            if -1 - int(tokens[index]) in self._sampled:
                continue
            row = int(np.searchsorted(plan.query_start, index, side="right")) - 1
            known = self._sequences[step.sequences[row]].tokens
            position = int(plan.kv_length[row] - plan.query_start[row + 1]) + index
            comparable[row] = position < len(known)
            tokens[index] = known[position] if comparable[row] else _UNKNOWN_TOKEN
        return tokens, comparable

    def _starts(self, step: RecordedStep) -> tuple[RowStart, ...]:
        """Sampling state of rows that need it and whose slots got it before the recording."""
        plan, added = step.plan, []
        held = self._sampled.union(start.slot for start in plan.starts)
        for row in np.flatnonzero(plan.samples).tolist():
            slot, recorded = int(plan.slots[row]), self._sequences[step.sequences[row]]
            request = recorded.request
            params = request.params
            if (params.penalized or params.biased) and slot not in held:
                output = recorded.tokens[len(request.prompt) : int(plan.kv_length[row])].tolist()
                added.append(RowStart(slot, request.prompt, tuple(output), params.logit_bias, params.allowed_token_ids))
        return tuple(added)


def spare_spans(recorded: Capabilities, max_tokens: int) -> list[int]:
    """Pages beyond the recorded ones, by group of layers, that rebuilding needs in steps of so many tokens."""
    return [0 if window is None else touched_pages(window - 1 + max_tokens, recorded.page_size) for window in recorded.windows]


def _pages(num_tokens: int, page_size: int) -> int:
    return -(-num_tokens // page_size)
