"""Where the rows of a step find their recurrent states, where they leave them, and which states are kept for others.

A snapshot is taken where a prompt ends, at its last whole page; every so many tokens of a sequence, the one before making way;
and where a prompt left the pages of another, if there was none: what two prompts begin with, a third one may.
"""

from __future__ import annotations

import numpy as np

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.state_pool import StatePool
from jaxserve.scheduler.request import Sequence
from jaxserve.step.plan import NO_STATE, STATE_WORDS, Ints


class RecurrentStates:
    """Plans the words of rows about their states (`Plan.states`)."""

    def __init__(self, cache: KVCache, pool: StatePool) -> None:
        self._cache, self._pool = cache, pool

    def rows(self, chosen: list[tuple[Sequence, int]], num_drafts: Ints) -> Ints:
        """int32[R,STATE_WORDS+W], of rows whose `num_computed` has moved ahead."""
        width = self._pool.places.width
        words = np.zeros((len(chosen), STATE_WORDS + width), np.int32)
        busy = {sequence.pages.state.restored for sequence, _ in chosen}
        for row, (sequence, count) in enumerate(chosen):
            own, state, start = self._pool.places.own(sequence.slot), sequence.pages.state, sequence.num_computed - count
            source = state.restored or own + width - 1 - state.refused
            state.restored = state.refused = 0
            snapshot, after = self._snapshot(sequence, start, busy)
            words[row, :STATE_WORDS] = source if start else 0, snapshot, after
            words[row, STATE_WORDS:] = np.arange(own, own + width)
            words[row, STATE_WORDS : STATE_WORDS + width - 1 - num_drafts[row]] = NO_STATE
        return words

    def _snapshot(self, sequence: Sequence, start: int, busy: set[int]) -> tuple[int, int]:
        """A place for a snapshot, and behind how many of the row's tokens it is; zeros for none."""
        if sequence.num_drafts or not self._cache.keeps(sequence.pages):  # where it is, is only known if drafts are right
            return 0, 0
        end = self._boundary(sequence, start)
        if not end:
            return 0, 0
        place = self._cache.keep_state(sequence.pages, end, busy)
        if place is None:
            return 0, 0
        busy.add(place)
        return place, end - start

    def _boundary(self, sequence: Sequence, start: int) -> int:
        """Behind which of its tokens a snapshot would be good, of those that the row computes; 0 for none."""
        end, size, interval = sequence.num_computed, self._cache.page_size, self._pool.places.interval
        branch = sequence.pages.state.branch
        if start < branch <= end:
            return branch
        if start < sequence.num_prompt <= end and (last := (sequence.num_prompt - 1) // size * size) > start:
            return last
        latest = end // interval * interval
        return latest if latest > start else 0
