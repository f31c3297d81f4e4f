"""Per-slot arrays of everything the executor needs about running sequences, so that a plan is a few fancy-indexed copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from jaxserve.cache.page_pool import NULL_PAGE
from jaxserve.sampling.options import STANDARD, RowOptions, RowSource
from jaxserve.step.plan import Bools, Ints


class _Request(Protocol):
    @property
    def id(self) -> str: ...


class Running(Protocol):
    """A sequence that has a slot."""

    slot: int

    @property
    def request(self) -> _Request:
        """Its request, which has a name."""
        ...


class RowTable:
    """Slots 0..num_slots-1, one a running sequence.

    Args:
        num_slots: sequences that can run at once.
        max_pages: pages of the longest sequence.
        options: what the words of a row hold.
    """

    def __init__(self, num_slots: int, max_pages: int, options: RowOptions = STANDARD) -> None:
        self._free = list(range(num_slots - 1, -1, -1))
        self._pages = np.full((num_slots, max_pages), NULL_PAGE, np.int32)
        self._num_pages = np.zeros(num_slots, np.int32)
        self._min_length = np.zeros(num_slots, np.int32)
        self._options = options
        self._sampling = np.tile(options.neutral, (num_slots, 1))

        # Most steps have the rows of the step before: they get its copies, which nobody can write to.
        self._last: tuple[Sequence[Running], Ints, tuple[str, ...]] | None = None  # sequences of the latest step, slots, names
        self._last_pages: Ints | None = None  # of them
        self._last_sampling: Ints | None = None  # of them, once all have their min_tokens

    @property
    def num_free(self) -> int:
        """Free slots."""
        return len(self._free)

    def pack(self, source: RowSource) -> Ints:
        """The words int32[W] of a sequence's options. Raises ValueError or OverflowError for values without room."""
        return self._options.words(source)

    def take(self, options: Ints, min_length: int) -> int:
        """Give a sequence a slot and write its packed options there; it has its `min_tokens` at `min_length` tokens."""
        slot = self._free[-1]
        self._last = self._last_pages = None
        self._sampling[slot] = options
        self._min_length[slot] = min_length
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

    def select(self, sequences: Sequence[Running]) -> tuple[Ints, tuple[str, ...]]:
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

    def sampling(self, slots: Ints, lengths: Ints) -> Ints:
        """int32[R,W]: a copy of the rows' options; some end where `lengths` reach prompt + min_tokens."""
        if self._last_sampling is not None:  # lengths only grow
            return self._last_sampling
        long_enough: Bools = lengths >= self._min_length[slots]
        words = self._sampling[slots]
        self._options.end_temporary(words, long_enough)
        words.flags.writeable = False
        if long_enough.all():
            self._last_sampling = words
        return words
