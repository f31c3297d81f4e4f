"""Sequences that run: each has a slot and pages. Starting, growing and stopping them; nothing here decides which."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.page_pool import NULL_PAGE
from jaxserve.cache.sequence_pages import PrefixMatch
from jaxserve.cache.swap import SwapSpace
from jaxserve.scheduler.estimates import LATE
from jaxserve.scheduler.request import NO_SLOT, Sequence, Status
from jaxserve.step.plan import Ints, MoveKind, PageMove
from jaxserve.step.rows import RowTable
from jaxserve.types import ServiceClass

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
OnStop = Callable[[Sequence], None]


def tell_nobody(sequence: Sequence) -> None:
    """An OnStop."""


class Footprint:
    """Tokens of running sequences, now and later."""

    def __init__(self, num_slots: int) -> None:
        self._runs = np.zeros(num_slots, np.bool_)
        self._batch = np.zeros(num_slots, np.bool_)
        self._tokens = np.zeros(num_slots, np.int64)
        self._prompt = np.zeros(num_slots, np.int64)
        self._expected = np.zeros(num_slots, np.float64)
        self._limit = np.zeros(num_slots, np.int64)
        self._latest: tuple[Ints, Ints] | None = None  # slots and lengths of the latest step, not in the arrays yet

    def start(self, slot: int, *, tokens: int, prompt: int, expected: float, limit: int, batch: bool) -> None:
        """A sequence starts: tokens it has, those of its prompt, outputs expected, tokens at which it ends, its class."""
        self._settle()
        self._runs[slot] = True
        self._batch[slot] = batch
        self._tokens[slot] = tokens
        self._prompt[slot] = prompt
        self._expected[slot] = expected
        self._limit[slot] = limit

    def set_batch(self, slot: int, *, batch: bool) -> None:
        self._batch[slot] = batch

    def is_batch(self, slot: int) -> bool:
        return bool(self._batch[slot])

    def stop(self, slot: int) -> None:
        self._runs[slot] = False

    def grew(self, slots: Ints, lengths: Ints) -> None:
        """The slots' sequences have `lengths` tokens in the cache; those of a prompt that is not computed yet count already.

        `slots` is the same object for the same slots, and neither array is written to any more.
        """
        if self._latest is not None and self._latest[0] is not slots:
            self._settle()
        self._latest = slots, lengths

    def needs(self) -> tuple[Floats, Floats, Bools]:
        """Of each running sequence: tokens it has, tokens still expected (as OutputLengths.remaining), whether it is batch."""
        self._settle()
        runs = self._runs
        tokens, prompt = self._tokens[runs], self._prompt[runs]
        output = tokens - prompt
        total = prompt + np.maximum(self._expected[runs], LATE * output)
        growth = np.maximum(np.minimum(total, self._limit[runs]) - tokens, 0.0)
        return tokens.astype(np.float64), growth, self._batch[runs]

    def _settle(self) -> None:
        """Write the latest step's lengths down: steps of the same rows follow one another, and few are asked about."""
        if self._latest is not None:
            slots, lengths = self._latest
            self._tokens[slots] = np.maximum(self._tokens[slots], lengths)
            self._latest = None


class RunningSet:
    """Running sequences in order of precedence.

    Attributes:
        sequences: they, to be read only.
        footprint: what the sequences hold and will need.
        num_pages: pages they hold, those that several hold counted as often.

    Args:
        swap: where preempted pages can wait; None if there is no such place.
        on_stop: told of every sequence that stops, while it has its pages.
    """

    def __init__(
        self,
        cache: KVCache,
        rows: RowTable,
        footprint: Footprint,
        swap: SwapSpace | None,
        on_stop: OnStop = tell_nobody,
    ) -> None:
        self.cache = cache
        self.rows = rows
        self.footprint = footprint
        self.num_pages = 0
        self.sequences: list[Sequence] = []
        self._swap = swap
        self._on_stop = on_stop
        self._moves: list[PageMove] = []
        self._tenant_rows: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.sequences)

    def match(self, sequence: Sequence, *, fork: bool) -> PrefixMatch:
        """Pages that the sequence would start with; with `fork`, its parent's."""
        root = sequence.request.cache_root
        if sequence.swap_slots:  # every page comes back from the swap space
            return PrefixMatch(root)
        if fork and sequence.parent is not None:
            return self.cache.fork_match(sequence.parent.pages, sequence.num_prompt - 1)
        known = sequence.tokens
        if sequence.is_read:  # a token must run to be read
            known = known[: sequence.num_read + 1]
        return self.cache.find(root, known, sequence.prefix_hashes)

    def take_moves(self) -> tuple[PageMove, ...]:
        """Pages to move before the next step: what was planned since the last one that had rows."""
        moves, self._moves = tuple(self._moves), []
        return moves

    def rows_of(self, tenant: str) -> int:
        return self._tenant_rows[tenant]

    def start(self, sequence: Sequence, match: PrefixMatch, *, fork: bool, expected: float) -> None:
        """Give the sequence a slot and the pages of `match`, or those it has in the swap space. The pages must be free.

        `expected` output tokens are reckoned with.
        """
        request = sequence.request
        options = self.rows.pack(sequence.row_source) if sequence.options is None else sequence.options
        sequence.slot = self.rows.take(options, sequence.num_prompt + request.params.min_tokens)
        sequence.status = Status.RUNNING
        if sequence.swap_slots:
            self._swap_in(sequence)
        elif fork and sequence.parent is not None:
            parent = sequence.parent
            forked = self.cache.fork(parent.pages, sequence.num_prompt - 1)
            assert forked is not None, "its page was promised"
            sequence.pages = forked.pages
            sequence.num_computed = sequence.num_prompt - 1
            sequence.num_cached = parent.num_cached
            self._moves += [PageMove(MoveKind.COPY, *pair) for pair in forked.copies]
        else:
            sequence.pages = self.cache.begin(match, len(sequence.tokens), sequence.request.tenant)
            sequence.num_computed = match.num_tokens
            if sequence.num_preemptions == 0:
                sequence.num_cached = min(match.num_tokens, sequence.num_prompt)
        self._has_pages(sequence, self.cache.num_held(sequence.pages))
        self._next_commit(sequence)
        insort(self.sequences, sequence, key=attrgetter("precedence"))
        self._tenant_rows[sequence.request.tenant] += 1
        self.footprint.start(
            sequence.slot,
            tokens=len(sequence.tokens),
            prompt=sequence.num_prompt,
            expected=expected,
            limit=sequence.limit,
            batch=sequence.batch,
        )

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give the sequence pages for so many tokens in all; False, changing nothing, if there are not enough."""
        known = len(sequence.pages.pages)
        if not self.cache.grow(sequence.pages, num_tokens):
            return False
        self._has_pages(sequence, len(sequence.pages.pages) - known)
        return True

    def slide(self) -> None:
        """Give back the pages that no token to come sees. Only before a step is planned: none of its rows has moved ahead."""
        if not self.cache.slides:
            return
        for sequence in self.sequences:
            if (sure := sequence.num_computed - sequence.num_drafts) >= sequence.pages.slides_at:
                places = self.cache.slide(sequence.pages, sure)
                self.num_pages -= len(places)
                self.rows.drop_pages(sequence.slot, places)

    def commit(self, sequence: Sequence) -> None:
        """Make the pages findable that its computed and known tokens fill."""
        self.cache.commit(sequence.pages, sequence.tokens, sequence.num_computed)
        self._next_commit(sequence)

    def set_class(self, sequence: Sequence, service_class: ServiceClass) -> None:
        self.sequences.remove(sequence)
        sequence.set_class(service_class)
        insort(self.sequences, sequence, key=attrgetter("precedence"))
        self.footprint.set_batch(sequence.slot, batch=sequence.batch)

    def computed_pages(self, sequence: Sequence) -> list[int]:
        """Pages that it holds computed tokens in."""
        pages = sequence.pages.pages[: self.cache.pages_for(sequence.num_computed)]
        return [page for page in pages if page != NULL_PAGE]

    def swap_out(self, sequence: Sequence) -> bool:
        """Plan to move its computed pages to the swap space; False if that is full, or there are none. It must stop next."""
        pages = self.computed_pages(sequence)
        if self._swap is None or not pages:
            return False
        slots = self._swap.take(len(pages))
        if slots is None:
            return False
        sequence.swap_slots = slots
        self._moves += [PageMove(MoveKind.TO_TIER, *pair) for pair in zip(pages, slots, strict=True)]
        return True

    def stop(self, sequence: Sequence) -> None:
        """Release pages and slot. Steps run in order, so a step in flight is done with them before a later one starts."""
        self._on_stop(sequence)
        self.num_pages -= self.cache.num_held(sequence.pages)
        self._tenant_rows[sequence.request.tenant] -= 1
        if not self._tenant_rows[sequence.request.tenant]:
            del self._tenant_rows[sequence.request.tenant]
        self.cache.release(sequence.pages)
        self.footprint.stop(sequence.slot)
        self.rows.give_back(sequence.slot)
        self.sequences.remove(sequence)
        sequence.slot = NO_SLOT
        sequence.capacity = 0
        sequence.state_loaded = False
        sequence.drafts = ()
        sequence.guessed = 0  # they are where its slot was
        if not sequence.swap_slots:
            sequence.num_computed = 0
            sequence.unguided = False

    def forget_swapped(self, sequence: Sequence) -> None:
        """The sequence ends while its pages wait in the swap space, if any do."""
        if sequence.swap_slots and self._swap is not None:
            self._swap.give_back(sequence.swap_slots)
            sequence.swap_slots = []

    def check(self, unfinished: list[Sequence], num_slots: int) -> None:
        assert self.sequences == sorted(self.sequences, key=attrgetter("precedence")), "out of order"
        slots = {sequence.slot for sequence in self.sequences}
        assert len(slots) == len(self.sequences) == num_slots - self.rows.num_free
        for sequence in self.sequences:
            assert sequence.capacity == self.cache.capacity(sequence.pages)
            assert self.cache.num_held(sequence.pages) <= self.cache.most_pages(sequence.capacity), "more pages than windows need"
            assert sequence.num_computed <= sequence.capacity
            assert not sequence.swap_slots, "a running sequence is swapped out"
            assert self.footprint.is_batch(sequence.slot) == sequence.batch
        running = set(self.sequences)
        for sequence in unfinished:
            assert (sequence in running) == (sequence.status is Status.RUNNING) == (sequence.slot != NO_SLOT)
            assert sequence.num_computed <= sequence.num_tokens
            assert sequence in running or sequence.swap_slots or not sequence.num_computed
        assert self.num_pages == sum(self.cache.num_held(sequence.pages) for sequence in self.sequences)
        assert self._tenant_rows == Counter(sequence.request.tenant for sequence in self.sequences)
        self.cache.check(sequence.pages for sequence in unfinished)
        if self._swap is not None:
            self._swap.check(sequence.swap_slots for sequence in unfinished)

    def _swap_in(self, sequence: Sequence) -> None:
        """Take pages for what was swapped out, and plan to move it back. Later moves may use its swap slots again."""
        assert self._swap is not None
        resumed = self.cache.resume(sequence.pages, sequence.num_computed)
        assert resumed, "its pages were promised"
        pairs = zip(sequence.swap_slots, self.computed_pages(sequence), strict=True)
        self._moves += [PageMove(MoveKind.FROM_TIER, *pair) for pair in pairs]
        self._swap.give_back(sequence.swap_slots)
        sequence.swap_slots = []

    def _has_pages(self, sequence: Sequence, new: int) -> None:
        self.num_pages += new
        sequence.capacity = self.cache.capacity(sequence.pages)
        self.rows.set_pages(sequence.slot, sequence.pages.pages)

    def _next_commit(self, sequence: Sequence) -> None:
        size = self.cache.page_size
        sequence.commit_at = (min(sequence.num_computed, len(sequence.tokens)) // size + 1) * size
