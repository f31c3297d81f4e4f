"""The KV cache as the scheduler sees it: pages of sequences, shared where prefixes are equal.

    find(tokens)   which leading tokens are already there          (changes nothing)
    begin(match)   a sequence that holds those pages               (takes references)
    fork(parent)   a sequence that starts like another             (takes references, and a page to copy to)
    grow(...)      pages for its next tokens, or False             (all or nothing)
    slide(...)     gives back what its next tokens do not see      (pages stay findable until they are used again)
    commit(...)    its pages that are now full become findable     (changes no counts)
    release(...)   gives everything back; pages stay findable until they are used again

A page is committed when the step that fills it is *planned*: steps run in order, so requests of later steps may rely on it. A
step that has a row of more than a few tokens (`step.buckets.FEW_TOKENS`) writes keys and values before it reads them, so what
such a row fills may be found by requests of the same step, too. Steps of shorter rows alone may write and read in one kernel:
what these fill is committed once the step is chosen. Only full pages are shared, so no step ever writes into a page that two
sequences hold.

Pages of a chain are evicted from its end: what can be found by its own hash can be found from the start of its prompt. Quotas may
break that where tenants share a chain, for they evict by owner; the pages behind the gap are lost until they age out.

Layers may see a window of the latest tokens only. Layers are then grouped by their window, and each group has a page of its own
for the same tokens: a *column* is one page of every group. A page that no token to come sees is given back, and the null page
stands in its place; a prefix is found if the pages that its next token sees are there, whatever became of the others. Windows
slide before a step is planned, never while it is: a page given back may be written by any row of that step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from jaxserve.cache.events import Stored, name_of
from jaxserve.cache.page_pool import NULL_PAGE, EvictionListener, PagePool
from jaxserve.cache.prefix_cache import PrefixCache
from jaxserve.cache.prefix_hash import page_hash
from jaxserve.cache.sequence_pages import Fork, PrefixMatch, SequencePages, SequenceState
from jaxserve.cache.state_pool import StatePool
from jaxserve.cache.tenants import SHARED_TENANT, CacheCounters, Tenants, count_eviction
from jaxserve.config.windows import first_column, most_pages
from jaxserve.errors import InvalidRequestError

PINNED_SHARE = 4  # by default a fourth of the pages may be pinned


def no_quota(tenant: str) -> int | None:
    return None


class KVCache:
    """Pages for sequences.

    Attributes:
        prefixes: what can be found, for those who follow it.

    Args:
        num_pages: pages in all, the null page included.
        page_size: tokens a page.
        prefix_caching: whether equal prefixes share pages.
        quota: pages of a tenant, referenced and cached, beyond which its cached pages are evicted before others'; None for no
            limit. Asked when a tenant is new. It never refuses pages.
        max_pinned: pages that may be pinned; a fourth of the usable ones if None.
        windows: the window of each group of layers, in tokens; None for a group that sees everything.
        max_chunk: tokens of a sequence that one step computes at most; needed where there is a window.
        on_eviction: who is told of evictions, beside the tenants' counters.
        states: snapshots of recurrent states, without which no prefix is found; None of a model that has none.

    Raises ValueError: a window without `max_chunk`.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        prefix_caching: bool,
        quota: Callable[[str], int | None] = no_quota,
        max_pinned: int | None = None,
        windows: tuple[int | None, ...] = (None,),
        max_chunk: int | None = None,
        on_eviction: Iterable[EvictionListener] = (),
        states: StatePool | None = None,
    ) -> None:
        if any(windows) and max_chunk is None:
            raise ValueError("a cache with windows needs max_chunk")
        self.page_size = page_size
        self.windows = windows
        self.states = states
        self._groups = len(windows)
        self._sliding = tuple((group, window) for group, window in enumerate(windows) if window is not None)
        self._reach = {group: -(-(window - 1) // page_size) for group, window in self._sliding}  # columns before a whole one
        self._max_chunk = max_chunk or 0
        self.prefixes = PrefixCache(num_pages)
        self._tenants = Tenants(quota, lifetime=num_pages - 1)
        self._pool = PagePool(num_pages, self.prefixes, self._tenants, (count_eviction, *on_eviction))
        self._prefix_caching = prefix_caching
        self._max_pinned = self.num_usable // PINNED_SHARE if max_pinned is None else max_pinned
        self._pinned: dict[int, None] = {}  # in the order of pinning: prefixes before what follows them
        self._num_pinned: Counter[str] = Counter()  # by the tenant that owns them
        self._epoch = 0
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        """Free pages that hold prefixes."""
        return self._pool.num_cached

    @property
    def num_usable(self) -> int:
        """Pages that sequences and pins have together at most."""
        return self._pool.num_usable

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    @property
    def slides(self) -> bool:
        return bool(self._sliding)

    def pages_for(self, num_tokens: int) -> int:
        """Pages of all groups that hold this many tokens, if none is given back."""
        return -(-num_tokens // self.page_size) * self._groups

    def most_pages(self, num_tokens: int) -> int:
        """Pages that a sequence of this many tokens holds at once at most."""
        return sum(most_pages(window, num_tokens, self.page_size, self._max_chunk) for window in self.windows)

    def capacity(self, sequence: SequencePages) -> int:
        """Tokens that the sequence's pages hold, those that were given back included."""
        return len(sequence.pages) // self._groups * self.page_size

    def num_held(self, sequence: SequencePages) -> int:
        return len(sequence.pages) - self._num_null(sequence, 0)

    def num_different(self, sequences: Sequence[SequencePages]) -> int:
        """Pages that the sequences hold together; one that a sequence computed and others found counts twice."""
        shared = {page for one in sequences for page in one.pages[: one.num_shared * self._groups]}
        shared.discard(NULL_PAGE)
        own = [len(one.pages) - one.num_shared * self._groups - self._num_null(one, one.num_shared) for one in sequences]
        return len(shared) + sum(own)

    def tenant_pages(self, tenant: str) -> int:
        """Different pages in use that were allocated for the tenant; those it has pinned are not counted."""
        return self._tenants.pages(tenant) - self._num_pinned[tenant]

    def counters(self) -> Mapping[str, CacheCounters]:
        """Hits and evictions by tenant; those of tenants that had no page for long are counted under ""."""
        return self._tenants.counters()

    def find(self, root: bytes, tokens: Sequence[int], hashes: list[bytes]) -> PrefixMatch:
        """The longest prefix in the cache. Never all tokens: the last one must run to give the next token's logits.

        `hashes` holds the hashes of the sequence's leading full pages as far as an earlier call computed them; it is extended.
        """
        if not self._prefix_caching:
            return PrefixMatch(root)
        usable = (len(tokens) - 1) // self.page_size
        self._extend(hashes, root, tokens, usable)
        pages = self._match(hashes[:usable])
        branch = found = columns = len(pages) // self._groups
        while self.states is not None and columns and (columns := self.states.find(hashes[:found])) < found:
            pages = self._match(hashes[:columns])
            found = len(pages) // self._groups
        # Behind its last snapshot a conversation that goes on has pages too, fewer than from one snapshot to the next.
        branch, tokens_found = branch * self.page_size, columns * self.page_size
        worth_keeping = self.states is not None and (branch - tokens_found >= self.states.places.interval or not columns)
        return PrefixMatch(root, tuple(pages), tuple(hashes[:columns]), tokens_found, branch if worth_keeping else 0)

    def fits(self, match: PrefixMatch, num_tokens: int, *, spare: int) -> bool:
        """Whether a sequence could begin with `match`, grow to `num_tokens`, and leave `spare` pages free."""
        return self.pages_taken(match, num_tokens) + spare <= self._pool.num_free

    def pages_taken(self, match: PrefixMatch, num_tokens: int) -> int:
        """Free pages that a sequence uses up if it begins with `match` and grows to `num_tokens`: free cached ones too.

        With windows, how many at once at most.
        """
        if not self._sliding:
            return self._pool.count_held(match.pages, 0) + self.pages_for(num_tokens) - len(match.pages)
        new = (self.pages_for(num_tokens) - len(match.pages)) // self._groups
        taken = 0
        for group, window in enumerate(self.windows):
            found = self._pool.count_held(_held(match.pages[group :: self._groups]), 0)
            most = found + new
            if window is not None:
                most = min(most, most_pages(window, num_tokens, self.page_size, self._max_chunk))
            taken += most
        return taken

    def begin(self, match: PrefixMatch, num_tokens: int, tenant: str = SHARED_TENANT) -> SequencePages:
        """Start a sequence of `num_tokens` tokens that holds the matched pages; pages it allocates are charged to `tenant`."""
        self.queried_tokens += num_tokens
        self.hit_tokens += match.num_tokens
        self._tenants.count_query(tenant, num_tokens, match.num_tokens)
        pages, columns = _held(match.pages), len(match.pages) // self._groups
        self.prefixes.count_hit(pages)
        self._pool.share(pages)
        sequence = SequencePages(match.root, list(match.pages), list(match.hashes), tenant, self._epoch, columns)
        self._slid(sequence, match.num_tokens)
        sequence.state.branch = match.branch
        if self.states is not None and match.hashes:
            goes_on = num_tokens > match.num_tokens + self.page_size
            self.states.restore(sequence.state, match.hashes[-1], goes_on=goes_on)
        return sequence

    def can_fork(self, parent: SequencePages, num_tokens: int) -> bool:
        """Whether the parent still holds what a sequence that starts with its first `num_tokens` tokens sees of them."""
        size = self.page_size
        return self.states is None and all(
            first_column(window, parent.start, size) <= first_column(window, num_tokens, size) for _, window in self._sliding
        )

    def fork_match(self, parent: SequencePages, num_tokens: int) -> PrefixMatch:
        """The whole columns that `fork` would share."""
        full = num_tokens // self.page_size
        pages = parent.pages[: full * self._groups]
        for group, window in self._sliding:
            for column in range(min(full, first_column(window, num_tokens, self.page_size))):
                pages[column * self._groups + group] = NULL_PAGE
        return PrefixMatch(parent.root, tuple(pages), tuple(parent.hashes[:full]), full * self.page_size)

    def fork(self, parent: SequencePages, num_tokens: int) -> Fork | None:
        """A sequence whose first `num_tokens` tokens are its parent's; None, changing nothing, if no page is free for a copy.

        Full pages are shared, also without prefix caching. Of a page that both would write into the new sequence gets a copy: the
        parent's tokens in it must have been computed by an earlier step. Raises ValueError if the parent has fewer pages, or gave
        one back that the new sequence sees.
        """
        full, rest = divmod(num_tokens, self.page_size)
        if (full + bool(rest)) * self._groups > len(parent.pages):
            raise ValueError(
                f"fork at token {num_tokens} of a sequence with {len(parent.pages)} pages of {self.page_size} tokens"
            )
        if not self.can_fork(parent, num_tokens):
            raise ValueError(f"fork at token {num_tokens} of a sequence whose windows slid to token {parent.start}")
        if rest and self._pool.num_free < self._groups:
            return None
        match = self.fork_match(parent, num_tokens)
        parent.num_shared = max(parent.num_shared, full)
        pages = list(match.pages)
        self._pool.share(_held(pages))
        copies: tuple[tuple[int, int], ...] = ()
        if rest:
            copied = self._pool.allocate(self._groups, self._tenants.account(parent.tenant))
            copies = tuple(zip(parent.pages[len(pages) : len(pages) + self._groups], copied, strict=True))
            pages += copied
        child = SequencePages(parent.root, pages, list(match.hashes), parent.tenant, parent.epoch, full)
        self._slid(child, num_tokens)
        return Fork(child, copies)

    def can_grow(self, sequence: SequencePages, num_tokens: int, *, spare: int) -> bool:
        """Whether `grow` would succeed and leave `spare` pages free."""
        return self.pages_for(num_tokens) - len(sequence.pages) + spare <= self._pool.num_free

    def grow(self, sequence: SequencePages, num_tokens: int) -> bool:
        """Give the sequence pages for `num_tokens` tokens in all; False, changing nothing, if there are not enough."""
        missing = self.pages_for(num_tokens) - len(sequence.pages)
        if missing <= 0:  # nearly every decode
            return True
        if missing > self._pool.num_free:
            return False
        sequence.pages += self._pool.allocate(missing, self._tenants.account(sequence.tenant))
        return True

    def slide(self, sequence: SequencePages, num_computed: int) -> list[int]:
        """Give back the pages that the token at position `num_computed` and those after it do not see.

        Returns where they were in the sequence's pages. No step that is planned after this may read them: the sequence has
        computed `num_computed` tokens in the steps before.
        """
        places = [
            column * self._groups + group
            for group, window in self._sliding
            for column in range(
                first_column(window, sequence.start, self.page_size), first_column(window, num_computed, self.page_size)
            )
        ]
        self._slid(sequence, num_computed)
        self._pool.release([sequence.pages[place] for place in reversed(places)])
        for place in places:
            sequence.pages[place] = NULL_PAGE
        return places

    def resume(self, sequence: SequencePages, num_computed: int) -> bool:
        """Give a sequence that was released the pages that it has with so many tokens computed; False if not enough are free."""
        nulls = [first_column(window, num_computed, self.page_size) for window in self.windows]
        columns = -(-num_computed // self.page_size)
        missing = sum(max(0, columns - null) for null in nulls)
        if missing > self._pool.num_free:
            return False
        new = iter(self._pool.allocate(missing, self._tenants.account(sequence.tenant)))
        sequence.pages += [NULL_PAGE if column < null else next(new) for column in range(columns) for null in nulls]
        self._slid(sequence, num_computed)
        return True

    def commit(self, sequence: SequencePages, tokens: Sequence[int], num_computed: int) -> None:
        """Make the pages findable that the first `num_computed` of the known `tokens` fill.

        Does nothing for a sequence that began before the last flush.
        """
        if not self._prefix_caching:
            return
        known = len(tokens)
        full = (num_computed if num_computed < known else known) // self.page_size
        start = len(sequence.hashes)
        if full == start or sequence.epoch != self._epoch:  # nearly every decode
            return
        self._extend(sequence.hashes, sequence.root, tokens, full)
        groups = self._groups
        for group in range(groups):
            pages = sequence.pages[start * groups + group : full * groups : groups]
            if self.prefixes.events is not None:
                self._note_stored(sequence, tokens, start, pages, group)
            for column, page in enumerate(pages, start):
                if page != NULL_PAGE:  # else it was given back before the host knew all its tokens
                    self._pool.insert(name_of(sequence.hashes[column], group), page, column)
        self._insert_states(sequence)

    def keeps(self, sequence: SequencePages) -> bool:
        """Whether what the sequence computes can be found by others."""
        return self._prefix_caching and sequence.epoch == self._epoch

    def keep_state(self, sequence: SequencePages, num_tokens: int, busy: Collection[int]) -> int | None:
        """A place for the state after so many tokens, whole columns, which is found once these are known; None for none.

        It is none of the busy places, but for one that only this sequence reads. Only once a step is chosen: what it leaves there
        is found from the next step on.
        """
        assert self.states is not None, "a model with recurrent states"
        column = num_tokens // self.page_size
        if column <= len(sequence.hashes) and (digest := sequence.hashes[column - 1]) in self.states:
            self.states.use(digest)
            return None
        place = self.states.take_for(sequence.state, busy)
        if place is not None:
            sequence.state.pending.append((column, place))
            self._insert_states(sequence)
        return place

    def _insert_states(self, sequence: SequencePages) -> None:
        """Snapshots whose columns are known can be found."""
        state = sequence.state
        while self.states is not None and state.pending and state.pending[0][0] <= len(sequence.hashes):
            column, place = state.pending.pop(0)
            digest = sequence.hashes[column - 1]
            self.states.insert(digest, place)
            if column * self.page_size == state.branch:
                self.states.use(digest)  # two prompts part here, so a third one may come
            else:
                state.origin, state.latest = None, digest

    def _note_stored(self, sequence: SequencePages, tokens: Sequence[int], start: int, pages: Sequence[int], group: int) -> None:
        """These pages, of the columns from `start` on, are about to be found: those that could not be, run by run."""
        events, hashes, size = self.prefixes.events, sequence.hashes, self.page_size
        assert events is not None, "somebody follows"
        first, end = start, start + len(pages)
        while first < end:
            last = first
            while last < end and pages[last - start] != NULL_PAGE and name_of(hashes[last], group) not in self.prefixes:
                last += 1
            if last > first:
                parent = hashes[first - 1] if first else None
                content = tuple(tokens[first * size : last * size])
                events.stored(Stored(sequence.root, parent, tuple(hashes[first:last]), content, first, group))
            first = last + 1

    def exclusive_pages(self, *sequences: SequencePages) -> int:
        """Pages that releasing these sequences would free."""
        if len(sequences) == 1:
            return self._pool.count_held(sequences[0].pages, 1)
        holders = Counter(page for sequence in sequences for page in sequence.pages)
        return sum(self._pool.num_references(page) == count for page, count in holders.items())

    def release(self, sequence: SequencePages) -> None:
        """Give every page back. The sequence's last pages are evicted first: prefixes are worth more than tails.

        It may grow again, from nothing, to take pages that are swapped in.
        """
        self._pool.release(reversed(_held(sequence.pages)))
        sequence.pages.clear()
        sequence.hashes.clear()
        sequence.num_shared = 0
        sequence.start = 0
        if self.states is not None:
            self.states.give_back(place for _, place in sequence.state.pending)
        sequence.state = SequenceState()

    def pin(self, root: bytes, tokens: Sequence[int], tenant: str = SHARED_TENANT) -> int:
        """Hold the pages of the longest cached prefix of `tokens` until `unpin_all`; returns how many those are.

        Pages that were pinned before are not counted twice; new ones belong to `tenant`. Raises InvalidRequestError,
        changing nothing, if more than `max_pinned` pages would be pinned.
        """
        hashes: list[bytes] = []
        self._extend(hashes, root, tokens, len(tokens) // self.page_size)
        pages = _held(self._match(hashes))
        new = [page for page in pages if page not in self._pinned]
        if len(self._pinned) + len(new) > self._max_pinned:
            raise InvalidRequestError(
                f"cannot pin {len(new)} more pages: {len(self._pinned)} of at most {self._max_pinned} are pinned "
                f"(the KV cache has {self.num_usable})"
            )
        self._pool.share(new)
        self._pool.give_to(new, self._tenants.account(tenant))
        self._pinned.update(dict.fromkeys(new))
        self._num_pinned[tenant] += len(new)
        if self.states is not None:
            self.states.pin(hashes)
        return len(pages)

    def unpin_all(self) -> None:
        """Drop every pin. The pages stay findable until they are used again."""
        self._pool.release(reversed(self._pinned))
        self._pinned.clear()
        self._num_pinned.clear()
        if self.states is not None:
            self.states.unpin_all()

    def flush(self) -> None:
        """Nothing computed so far can be found any more, nor what sequences compute that began before; pins are dropped.

        Sequences keep their pages.
        """
        self._epoch += 1
        self._pool.forget()
        self.unpin_all()
        if self.states is not None:
            self.states.forget()

    def _match(self, hashes: Sequence[bytes]) -> list[int]:
        """Pages, as a sequence's, of the longest prefix whose next token finds all that it sees."""
        if self._groups == 1 and not self._sliding:
            return self.prefixes.match(hashes)
        columns = len(hashes)
        for group, window in enumerate(self.windows):
            if window is None:
                columns = len(self.prefixes.match(_names(hashes[:columns], group)))
        column, farthest = columns, max(self._reach.values(), default=0)
        while column > max(0, columns - farthest):  # what is before the end, from there backwards; a gap is the next end
            column -= 1
            for group, reach in self._reach.items():
                if columns - column <= reach and name_of(hashes[column], group) not in self.prefixes:
                    columns = column
                    break
        nulls = [max(0, columns - self._reach.get(group, columns)) for group in range(self._groups)]
        found = [
            [NULL_PAGE] * null + self.prefixes.match(_names(hashes[null:columns], group)) for group, null in enumerate(nulls)
        ]
        return [pages[column] for column in range(columns) for pages in found]

    def _slid(self, sequence: SequencePages, num_computed: int) -> None:
        """The sequence's windows are where so many computed tokens bring them."""
        sequence.start, size = num_computed, self.page_size
        if self._sliding:
            nulls = [(first_column(window, num_computed, size), window) for _, window in self._sliding]
            sequence.slides_at = min((null + 1) * size + window - 1 for null, window in nulls)

    def _num_null(self, sequence: SequencePages, first: int) -> int:
        return sum(max(0, first_column(window, sequence.start, self.page_size) - first) for _, window in self._sliding)

    def _extend(self, hashes: list[bytes], root: bytes, tokens: Sequence[int], count: int) -> None:
        """Append the hashes of pages len(hashes):count of the token sequence."""
        size = self.page_size
        digest = hashes[-1] if hashes else root
        for index in range(len(hashes), count):
            digest = page_hash(digest, tokens[index * size : (index + 1) * size])
            hashes.append(digest)

    def check(self, sequences: Iterable[SequencePages]) -> None:
        """Assert the invariants of pages, owners and pins, given every live sequence.

        Shared pages are full, and the null page stands where and only where windows have slid.
        """
        live = list(sequences)
        self._pool.check([*(_held(sequence.pages) for sequence in live), self._pinned])
        for sequence in live:
            full = max(sequence.num_shared, len(sequence.hashes)) * self._groups
            assert full <= len(sequence.pages), "a sequence shared more pages than it has"
            for page in _held(sequence.pages[full:]):
                assert self._pool.num_references(page) == 1, f"page {page} is shared and may still be written"
            for group, window in enumerate(self.windows):
                pages, null = sequence.pages[group :: self._groups], first_column(window, sequence.start, self.page_size)
                assert pages[:null] == [NULL_PAGE] * null, "a page is held that no token to come sees"
                assert NULL_PAGE not in pages[null:], "a page is missing"
        assert len(self._pinned) <= self._max_pinned, "too many pages are pinned"
        if self.states is not None:
            self.states.check(place for sequence in live for _, place in sequence.state.pending)


def _held(pages: Sequence[int]) -> list[int]:
    return [page for page in pages if page != NULL_PAGE]


def _names(hashes: Iterable[bytes], group: int) -> Iterator[bytes]:
    return (name_of(digest, group) for digest in hashes)
