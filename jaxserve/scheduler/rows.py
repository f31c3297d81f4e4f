"""Per-slot arrays of everything the executor needs about running sequences, so that a plan is a few fancy-indexed copies."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from jaxserve.cache.page_pool import NULL_PAGE
from jaxserve.sampling.params import key_of_seed
from jaxserve.scheduler.plan import SUPPRESS_WIDTH, Bools, Ints, SamplingRows
from jaxserve.scheduler.request import Sequence


class RowTable:
    """Slots 0..num_slots-1, one a running sequence.

    Args:
        num_slots: sequences that can run at once.
        max_pages: pages of the longest sequence.
    """

    def __init__(self, num_slots: int, max_pages: int) -> None:
        self._free = list(range(num_slots - 1, -1, -1))
        self._pages = np.full((num_slots, max_pages), NULL_PAGE, np.int32)
        self._num_pages = np.zeros(num_slots, np.int32)
        self._min_length = np.zeros(num_slots, np.int32)
        self._sampling = SamplingRows(
            temperature=np.zeros(num_slots, np.float32),
            top_k=np.zeros(num_slots, np.int32),
            top_p=np.ones(num_slots, np.float32),
            min_p=np.zeros(num_slots, np.float32),
            presence=np.zeros(num_slots, np.float32),
            frequency=np.zeros(num_slots, np.float32),
            repetition=np.ones(num_slots, np.float32),
            key=np.zeros((num_slots, 2), np.uint32),
            suppress=np.full((num_slots, SUPPRESS_WIDTH), -1, np.int32),
            num_logprobs=np.full(num_slots, -1, np.int32),
            has_bias=np.zeros(num_slots, np.bool_),
        )

        # Most steps have the rows of the step before: they get its copies, which nobody can write to.
        self._last: tuple[list[Sequence], Ints, tuple[str, ...]] | None = None  # sequences of the latest step, slots, names
        self._last_pages: Ints | None = None  # of them
        self._last_sampling: SamplingRows | None = None  # of them, once no stop token is suppressed
        self._tables = [(item.name, getattr(self._sampling, item.name)) for item in fields(SamplingRows)]

    @property
    def num_free(self) -> int:
        """Free slots."""
        return len(self._free)

    def take(self, sequence: Sequence) -> int:
        """Give the sequence a slot and write its parameters there. Whatever is raised, the slot stays free."""
        slot = self._free[-1]
        self._last = self._last_pages = None
        params, table = sequence.request.params, self._sampling
        table.temperature[slot] = params.temperature
        table.top_k[slot] = max(params.top_k, 0)
        table.top_p[slot] = params.top_p
        table.min_p[slot] = params.min_p
        table.presence[slot] = params.presence_penalty
        table.frequency[slot] = params.frequency_penalty
        table.repetition[slot] = params.repetition_penalty
        table.key[slot] = key_of_seed(sequence.request.seed)
        table.suppress[slot] = -1
        stops = sorted(sequence.stop_token_ids)
        table.suppress[slot, : len(stops)] = stops
        table.num_logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        table.has_bias[slot] = bool(params.logit_bias) or params.allowed_token_ids is not None
        self._min_length[slot] = sequence.num_prompt + params.min_tokens
        self._num_pages[slot] = 0
        self._pages[slot] = NULL_PAGE
        self._free.pop()
        return slot

    def give_back(self, slot: int) -> None:
        """The slot's sequence stopped running."""
        self._free.append(slot)

    def set_pages(self, slot: int, pages: list[int]) -> None:
        """Record the sequence's pages; while a sequence runs they are only appended, or dropped."""
        known = self._num_pages[slot]
        if known < len(pages):
            self._pages[slot, known : len(pages)] = pages[known:]
            self._num_pages[slot] = len(pages)
            self._last_pages = None

    def drop_pages(self, slot: int, places: list[int]) -> None:
        """The sequence gave back its pages at these places."""
        self._pages[slot, places] = NULL_PAGE
        self._last_pages = None

    def select(self, sequences: list[Sequence]) -> tuple[Ints, tuple[str, ...]]:
        """The rows of the next step, which `pages` and `sampling` are asked for: int32[R] slots, and the sequences' names."""
        if self._last is None or self._last[0] != sequences:
            slots = np.array([sequence.slot for sequence in sequences], np.int32)
            slots.flags.writeable = False
            self._last = sequences, slots, tuple([sequence.request.id for sequence in sequences])
            self._last_pages = self._last_sampling = None
        return self._last[1:]

    def pages(self, slots: Ints) -> Ints:
        """int32[R,M]: a copy of the rows' pages, M covering the longest."""
        if self._last_pages is None:
            self._last_pages = self._pages[slots, : int(self._num_pages[slots].max())]
            self._last_pages.flags.writeable = False
        return self._last_pages

    def sampling(self, slots: Ints, lengths: Ints) -> SamplingRows:
        """Copies of the rows' parameters; stop tokens are suppressed where `lengths` is short of prompt + min_tokens."""
        if self._last_sampling is not None:  # lengths only grow
            return self._last_sampling
        long_enough: Bools = lengths >= self._min_length[slots]
        rows = {name: table[slots] for name, table in self._tables}
        rows["suppress"][long_enough] = -1
        for table in rows.values():
            table.flags.writeable = False
        sampling = SamplingRows(**rows)
        if long_enough.all():
            self._last_sampling = sampling
        return sampling
