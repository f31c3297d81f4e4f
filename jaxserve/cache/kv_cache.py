"""The KV cache as the scheduler sees it: pages of sequences, shared where prefixes are equal.

    find(tokens)   which leading tokens are already there          (changes nothing)
    begin(match)   a sequence that holds those pages               (takes references)
    grow(...)      pages for its next tokens, or False             (all or nothing)
    commit(...)    its pages that are now full become findable     (changes no counts)
    release(...)   gives everything back; pages stay findable until they are used again

A page is committed when the step that fills it is *planned*: steps run in order and a step writes keys and values before it reads
them, so a request planned later, even in the same step, may rely on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jaxserve.cache.page_pool import PagePool
from jaxserve.cache.prefix_cache import PrefixCache
from jaxserve.cache.prefix_hash import page_hash


@dataclass(slots=True)
class SequencePages:
    """The pages of one sequence in order, and the hashes of those that are full and committed."""

    root: bytes
    pages: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Leading tokens that are in the cache: whole pages and their hashes."""

    root: bytes
    pages: tuple[int, ...] = ()
    hashes: tuple[bytes, ...] = ()
    num_tokens: int = 0


class KVCache:
    """Pages for sequences.

    Args:
        num_pages: pages in all, the null page included.
        page_size: tokens a page.
        prefix_caching: whether equal prefixes share pages.
    """

    def __init__(self, num_pages: int, page_size: int, *, prefix_caching: bool) -> None:
        self.page_size = page_size
        self._prefixes = PrefixCache()
        self._pool = PagePool(num_pages, on_evict=self._prefixes.remove)
        self._prefix_caching = prefix_caching
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def num_free(self) -> int:
        """Pages that could be handed out now."""
        return self._pool.num_free

    @property
    def num_usable(self) -> int:
        """Pages that one sequence could have at most."""
        return self._pool.num_usable

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-num_tokens // self.page_size)

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
        reused = sum(self._pool.is_free(page) for page in match.pages)  # taking a free cached page uses up a free page
        needed = self.pages_for(num_tokens) - len(match.pages)
        return reused + needed + spare <= self._pool.num_free

    def begin(self, match: PrefixMatch, num_tokens: int) -> SequencePages:
        """Start a sequence of `num_tokens` tokens that holds the matched pages."""
        self.queried_tokens += num_tokens
        self.hit_tokens += match.num_tokens
        self._pool.share(match.pages)
        return SequencePages(match.root, list(match.pages), list(match.hashes))

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
        sequence.pages += self._pool.allocate(missing)
        return True

    def commit(self, sequence: SequencePages, tokens: Sequence[int], num_computed: int) -> None:
        """Make the pages findable that the first `num_computed` of the known `tokens` fill."""
        if not self._prefix_caching:
            return
        full = min(num_computed, len(tokens)) // self.page_size
        known = len(sequence.hashes)
        if full == known:  # nearly every decode
            return
        self._extend(sequence.hashes, sequence.root, tokens, full)
        for page, digest in zip(sequence.pages[known:full], sequence.hashes[known:full], strict=True):
            if self._prefixes.insert(digest, page):
                self._pool.mark_cached(page)

    def release(self, sequence: SequencePages) -> None:
        """Give every page back. The sequence's last pages are evicted first: prefixes are worth more than tails."""
        self._pool.release(reversed(sequence.pages))
        sequence.pages.clear()
        sequence.hashes.clear()

    def _extend(self, hashes: list[bytes], root: bytes, tokens: Sequence[int], count: int) -> None:
        """Append the hashes of pages len(hashes):count of the token sequence."""
        size = self.page_size
        digest = hashes[-1] if hashes else root
        for index in range(len(hashes), count):
            digest = page_hash(digest, tokens[index * size : (index + 1) * size])
            hashes.append(digest)

    def check(self, sequences: Iterable[SequencePages]) -> None:
        """Assert the pool's invariants, given every live sequence."""
        self._pool.check([sequence.pages for sequence in sequences])
