"""Turns the scheduler's choice for a step into a plan."""

from __future__ import annotations

import itertools

import numpy as np

from jaxserve.cache.kv_cache import KVCache
from jaxserve.scheduler.containment import Containment
from jaxserve.scheduler.recurrent_states import RecurrentStates
from jaxserve.scheduler.request import NO_SLOT, Sequence
from jaxserve.scheduler.running import Footprint
from jaxserve.step.codes import sampled_token
from jaxserve.step.plan import AdapterLoad, Ints, PageMove, Plan, Readout, RowStart
from jaxserve.step.rows import RowTable


class Planner:
    """Builds plans from (sequence, tokens to compute) pairs whose `num_computed` has already moved ahead.

    A row that reaches the end of its sequence samples: its tokens become pending, and the next step may name the last of them as
    its input before the host knows it.

    A row whose readings or sampling state cannot be planned still computes its tokens, since other rows may share its pages; its
    sequence fails, so its result is discarded.
    """

    def __init__(self, rows: RowTable, footprint: Footprint, cache: KVCache, containment: Containment | None = None) -> None:
        self._rows = rows
        self._containment = containment or Containment()
        self._states = None if cache.states is None else RecurrentStates(cache, cache.states)
        self._footprint = footprint
        self._step = itertools.count()

    def plan(
        self,
        chosen: list[tuple[Sequence, int]],
        moves: tuple[PageMove, ...],
        guesses: int | None = None,
        adapter_loads: tuple[AdapterLoad, ...] = (),
    ) -> Plan:
        """The plan of the next step, R = len(chosen) rows, those with adapters first."""
        tokens: list[int] = []
        starts: list[RowStart] = []
        readouts: list[Readout] = []
        samples: list[bool] = []
        num_drafts = np.zeros(len(chosen), np.int32)
        for row, (sequence, count) in enumerate(chosen):
            end, known = sequence.num_computed, len(sequence.tokens)
            if sequence.drafts:
                num_drafts[row] = len(sequence.drafts)
                tokens += sequence.tokens[end - count : known]
                if end - len(sequence.drafts) > known:  # the last token is still on the device, as the drafts behind it are
                    tokens.append(sampled_token(sequence.slot))
                tokens += sequence.drafts
            elif sequence.forced and end > known:
                following = (sampled_token(sequence.slot), *sequence.forced)
                tokens += sequence.tokens[end - count : known]
                tokens += following[max(end - count - known, 0) : end - known]
            elif end > known:  # the last sampled token is still on the device
                tokens += sequence.tokens[end - count : known]
                tokens.append(sampled_token(sequence.slot))
            elif count == 1:
                tokens.append(sequence.tokens[end - 1])
            else:
                tokens += sequence.tokens[end - count : end]
            if sequence.reads:
                with self._containment.of(sequence, "planning"):
                    if (readout := _readout(row, sequence, end - count, end)) is not None:
                        readouts.append(readout)
            sample = sequence.task.generates and end == sequence.num_tokens + len(sequence.drafts)
            samples.append(sample)
            if sample:
                if not sequence.state_loaded:
                    with self._containment.of(sequence, "planning"):
                        starts += _row_starts(sequence)
                        sequence.state_loaded = True
                sequence.num_pending += 1
                if sequence.drafts:
                    sequence.num_pending += len(sequence.drafts)
                    sequence.num_drafts += len(sequence.drafts)
                    sequence.drafts = ()
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
            num_drafts=num_drafts,
            sampling=self._rows.sampling(slots, kv_length),
            starts=tuple(starts),
            readouts=tuple(readouts),
            moves=moves,
            guesses=guesses,
            adapters=_adapters(chosen),
            states=None if self._states is None else self._states.rows(chosen, num_drafts),
            adapter_loads=adapter_loads,
        )


def _adapters(chosen: list[tuple[Sequence, int]]) -> Ints | None:
    """int32[R]: the slot of each row's adapter; None if no row has one. The first has one if any has."""
    if not chosen or chosen[0][0].adapter_slot == NO_SLOT:
        return None
    return np.array([sequence.adapter_slot for sequence, _ in chosen], np.int32)


def _query_start(chosen: list[tuple[Sequence, int]], num_tokens: int) -> Ints:
    """int32[R+1]: where each row's tokens begin, and where the last one's end."""
    if num_tokens == len(chosen):
        return np.arange(num_tokens + 1, dtype=np.int32)
    return np.array([0, *itertools.accumulate(count for _, count in chosen)], np.int32)


def _readout(row: int, sequence: Sequence, start: int, end: int) -> Readout | None:
    """Read computed tokens start:end, unless they were read before a preemption or need not be."""
    first = max(start, sequence.num_read)
    values = sequence.reads[first:end]
    if not values:
        return None
    sequence.num_read = first + len(values)
    return Readout(row, first - start, values, sequence.task.reader)


def _row_starts(sequence: Sequence) -> list[RowStart]:
    params = sequence.request.params
    if not (params.penalized or params.biased):
        return []
    prompt, output = sequence.request.prompt, tuple(sequence.tokens[sequence.num_prompt :])
    return [RowStart(sequence.slot, prompt, output, params.logit_bias, params.allowed_token_ids)]
