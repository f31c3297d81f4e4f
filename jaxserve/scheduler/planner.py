"""Turns the scheduler's choice for a step into a plan."""

from __future__ import annotations

import itertools

import numpy as np

from jaxserve.scheduler.request import Sequence
from jaxserve.scheduler.running import Footprint
from jaxserve.step.plan import Ints, PageMoves, Plan, PromptScore, RowStart
from jaxserve.step.rows import RowTable


class Planner:
    """Builds plans from (sequence, tokens to compute) pairs whose `num_computed` has already moved ahead.

    A row that reaches the end of its sequence samples: its token becomes pending, and the next step may name it as its input
    before the host knows it.
    """

    def __init__(self, rows: RowTable, footprint: Footprint) -> None:
        self._rows = rows
        self._footprint = footprint
        self._step = itertools.count()

    def plan(self, chosen: list[tuple[Sequence, int]], moves: PageMoves) -> Plan:
        """The plan of the next step, R = len(chosen) rows."""
        tokens: list[int] = []
        starts: list[RowStart] = []
        scores: list[PromptScore] = []
        samples: list[bool] = []
        for row, (sequence, count) in enumerate(chosen):
            end, known = sequence.num_computed, len(sequence.tokens)
            if end > known:  # the last sampled token is still on the device
                tokens += sequence.tokens[end - count : known]
                tokens.append(-1 - sequence.slot)
            elif count == 1:
                tokens.append(sequence.tokens[end - 1])
            else:
                tokens += sequence.tokens[end - count : end]
            if sequence.targets and sequence.wants_scores:
                scores += _scores(row, sequence, end - count, end)
            sample = end == known + sequence.num_pending
            samples.append(sample)
            if sample:
                if not sequence.state_loaded:
                    starts += _row_starts(sequence)
                    sequence.state_loaded = True
                sequence.num_pending += 1
        slots, ids = self._rows.select([sequence for sequence, _ in chosen])
        kv_length = np.array([sequence.num_computed for sequence, _ in chosen], np.int32)
        self._footprint.grew(slots, kv_length)
        return Plan(
            step=next(self._step),
            ids=ids,
            slots=slots,
            tokens=np.array(tokens, np.int32),
            query_start=_query_start(chosen, len(tokens)),
            kv_length=kv_length,
            page_table=self._rows.pages(slots),
            samples=np.array(samples, np.bool_),
            sampling=self._rows.sampling(slots, kv_length),
            starts=tuple(starts),
            scores=tuple(scores),
            swap_out=tuple(moves.swap_out),
            swap_in=tuple(moves.swap_in),
            copies=tuple(moves.copies),
        )


def _query_start(chosen: list[tuple[Sequence, int]], num_tokens: int) -> Ints:
    """int32[R+1]: where each row's tokens begin, and where the last one's end."""
    if num_tokens == len(chosen):
        return np.arange(num_tokens + 1, dtype=np.int32)
    return np.array([0, *itertools.accumulate(count for _, count in chosen)], np.int32)


def _scores(row: int, sequence: Sequence, start: int, end: int) -> list[PromptScore]:
    """Score what follows computed tokens start:end, unless it was scored before a preemption or is not wanted."""
    first = max(start, sequence.num_scored)
    targets = sequence.targets[first + 1 : end + 1]
    sequence.num_scored = first + len(targets)
    return [PromptScore(row, first - start, targets)] if targets else []


def _row_starts(sequence: Sequence) -> list[RowStart]:
    """The state to load before the sequence's first sample in its slot, if it needs any."""
    params = sequence.request.params
    if not (params.penalized or params.biased):
        return []
    prompt, output = sequence.request.prompt, tuple(sequence.tokens[sequence.num_prompt :])
    return [RowStart(sequence.slot, prompt, output, params.logit_bias, params.allowed_token_ids)]
