"""The KV cache as the scheduler sees it: pages of sequences, shared where prefixes are equal.

    find(tokens)   which leading tokens are already there          (changes nothing)
    begin(match)   a sequence that holds those pages               (takes references)
    fork(parent)   a sequence that starts like another             (takes references, and a page to copy to)
    grow(...)      pages for its next tokens, or False             (all or nothing)
    commit(...)    its pages that are now full become findable     (changes no counts)
    release(...)   gives everything back; pages stay findable until they are used again

A page is committed when the step that fills it is *planned*: steps run in order and a step writes keys and values before it reads
them, so a request planned later, even in the same step, may rely on them. Only full pages are shared, so no step ever writes
into a page that two sequences hold.

Pages of a chain are evicted from its end: what can be found by its own hash can be found from the start of its prompt. Quotas may
break that where tenants share a chain, for they evict by owner; the pages behind the gap are lost until they age out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxserve.cache.page_pool import PagePool
from jaxserve.cache.prefix_cache import PrefixCache
from jaxserve.cache.prefix_hash import page_hash
from jaxserve.cache.tenants import SHARED_TENANT, CacheCounters, Tenants
from jaxserve.errors import InvalidRequestError

PINNED_SHARE = 4  # by default a fourth of the pages may be pinned


@dataclass(slots=True)
class SequencePages:
    """The pages of one sequence in order, and the hashes of those that are full and committed.

    Attributes:
        root: hash of the namespace of its prefix.
        pages: its pages.
        hashes: of its leading pages.
        tenant: whom pages that it allocates are charged to.
        epoch: flushes of the cache before it began.
        num_shared: leading pages that were shared by a fork or a match; they are full.
    """

    root: bytes
    pages: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    tenant: str = SHARED_TENANT
    epoch: int = 0
    num_shared: int = 0


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Leading tokens that are in the cache: whole pages and their hashes. Valid until the cache is used otherwise."""

    root: bytes
    pages: tuple[int, ...] = ()
    hashes: tuple[bytes, ...] = ()
    num_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Fork:
    """A sequence that starts with another's tokens.

    Attributes:
        pages: the new sequence's.
        copy: (source, destination) of the page to copy before any step writes into either; None if all its pages are shared.
    """

    pages: SequencePages
    copy: tuple[int, int] | None


def no_quota(tenant: str) -> int | None:
    """No limit, whoever the tenant is."""
    return None


class KVCache:
    """Pages for sequences.

    Args:
        num_pages: pages in all, the null page included.
        page_size: tokens a page.
        prefix_caching: whether equal prefixes share pages.
        quota: pages of a tenant, referenced and cached, beyond which its cached pages are evicted before others'; None for no
            limit. Asked when a tenant is new. It never refuses pages.
        max_pinned: pages that may be pinned; a fourth of the usable ones if None.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        prefix_caching: bool,
        quota: Callable[[str], int | None] = no_quota,
        max_pinned: int | None = None,
    ) -> None:
        self.page_size = page_size
        self._prefixes = PrefixCache(num_pages)
        self._tenants = Tenants(quota, lifetime=num_pages - 1)
        self._pool = PagePool(num_pages, self._prefixes, self._tenants)
        self._prefix_caching = prefix_caching
        self._max_pinned = self.num_usable // PINNED_SHARE if max_pinned is None else max_pinned
        self._pinned: dict[int, None] = {}  # in the order of pinning: prefixes before what follows them
        self._num_pinned: Counter[str] = Counter()  # by the tenant that owns them
        self._epoch = 0
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def num_free(self) -> int:
        """Pages that could be handed out now."""
        return self._pool.num_free

    @property
    def num_usable(self) -> int:
        """Pages that sequences and pins have together at most."""
        return self._pool.num_usable

    @property
    def num_pinned(self) -> int:
        """Pages that are pinned."""
        return len(self._pinned)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-num_tokens // self.page_size)

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
        pages = self._prefixes.match(hashes[:usable])
        return PrefixMatch(root, tuple(pages), tuple(hashes[: len(pages)]), len(pages) * self.page_size)

    def fits(self, match: PrefixMatch, num_tokens: int, *, spare: int) -> bool:
        """Whether a sequence could begin with `match`, grow to `num_tokens`, and leave `spare` pages free."""
        return self.pages_taken(match, num_tokens) + spare <= self._pool.num_free

    def pages_taken(self, match: PrefixMatch, num_tokens: int) -> int:
        """Free pages that a sequence uses up if it begins with `match` and grows to `num_tokens`: free cached ones too."""
        return self._pool.count_held(match.pages, 0) + self.pages_for(num_tokens) - len(match.pages)

    def begin(self, match: PrefixMatch, num_tokens: int, tenant: str = SHARED_TENANT) -> SequencePages:
        """Start a sequence of `num_tokens` tokens that holds the matched pages; pages it allocates are charged to `tenant`."""
        self.queried_tokens += num_tokens
        self.hit_tokens += match.num_tokens
        self._tenants.count_query(tenant, num_tokens, match.num_tokens)
        self._prefixes.count_hit(match.pages)
        self._pool.share(match.pages)
        return SequencePages(match.root, list(match.pages), list(match.hashes), tenant, self._epoch, len(match.pages))

    def fork(self, parent: SequencePages, num_tokens: int) -> Fork | None:
        """A sequence whose first `num_tokens` tokens are its parent's; None, changing nothing, if no page is free for a copy.

        Full pages are shared, also without prefix caching. Of a page that both would write into the new sequence gets a copy: the
        parent's tokens in it must have been computed by an earlier step. Raises ValueError if the parent has fewer pages.
        """
        full, rest = divmod(num_tokens, self.page_size)
        if full + bool(rest) > len(parent.pages):
            raise ValueError(
                f"fork at token {num_tokens} of a sequence with {len(parent.pages)} pages of {self.page_size} tokens"
            )
        if rest and self._pool.num_free == 0:
            return None
        parent.num_shared = max(parent.num_shared, full)
        pages = parent.pages[:full]
        self._pool.share(pages)
        copy = None
        if rest:
            pages += self._pool.allocate(1, self._tenants.account(parent.tenant))
            copy = (parent.pages[full], pages[full])
        return Fork(SequencePages(parent.root, pages, parent.hashes[:full], parent.tenant, parent.epoch, full), copy)

    def can_grow(self, sequence: SequencePages, num_tokens: int, *, spare: int) -> bool:
        """Whether `grow` would succeed and leave `spare` pages free."""
        return self.pages_for(num_tokens) - len(sequence.pages) + spare <= self._pool.num_free

    def grow(self, sequence: SequencePages, num_tokens: int) -> bool:
        """Give the sequence pages for `num_tokens` tokens in all; False, changing nothing, if there are not enough."""
        if num_tokens <= len(sequence.pages) * self.page_size:  # nearly every decode
            return True
        missing = self.pages_for(num_tokens) - len(sequence.pages)
        if missing > self._pool.num_free:
            return False
        sequence.pages += self._pool.allocate(missing, self._tenants.account(sequence.tenant))
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
        for page, digest in zip(sequence.pages[start:full], sequence.hashes[start:full], strict=True):
            self._pool.insert(digest, page)

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
        self._pool.release(reversed(sequence.pages))
        sequence.pages.clear()
        sequence.hashes.clear()
        sequence.num_shared = 0

    def pin(self, root: bytes, tokens: Sequence[int], tenant: str = SHARED_TENANT) -> int:
        """Hold the pages of the longest cached prefix of `tokens` until `unpin_all`; returns how many those are.

        Pages that were pinned before are not counted twice; new ones belong to `tenant`. Raises InvalidRequestError,
        changing nothing, if more than `max_pinned` pages would be pinned.
        """
        hashes: list[bytes] = []
        self._extend(hashes, root, tokens, len(tokens) // self.page_size)
        pages = self._prefixes.match(hashes)
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
        return len(pages)

    def unpin_all(self) -> None:
        """Drop every pin. The pages stay findable until they are used again."""
        self._pool.release(reversed(self._pinned))
        self._pinned.clear()
        self._num_pinned.clear()

    def flush(self) -> None:
        """Nothing computed so far can be found any more, nor what sequences compute that began before; pins are dropped.

        Sequences keep their pages.
        """
        self._epoch += 1
        self._pool.forget()
        self.unpin_all()

    def _extend(self, hashes: list[bytes], root: bytes, tokens: Sequence[int], count: int) -> None:
        """Append the hashes of pages len(hashes):count of the token sequence."""
        size = self.page_size
        digest = hashes[-1] if hashes else root
        for index in range(len(hashes), count):
            digest = page_hash(digest, tokens[index * size : (index + 1) * size])
            hashes.append(digest)

    def check(self, sequences: Iterable[SequencePages]) -> None:
        """Assert the invariants of pages, owners and pins, given every live sequence; and that shared pages are full."""
        live = list(sequences)
        self._pool.check([*(sequence.pages for sequence in live), self._pinned])
        for sequence in live:
            full = max(sequence.num_shared, len(sequence.hashes))
            assert full <= len(sequence.pages), "a sequence shared more pages than it has"
            for page in sequence.pages[full:]:
                assert self._pool.num_references(page) == 1, f"page {page} is shared and may still be written"
        assert len(self._pinned) <= self._max_pinned, "too many pages are pinned"
