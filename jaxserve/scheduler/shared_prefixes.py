"""What prompts have in common with those before them: it is computed once, so it is work once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as ListOf

from jaxserve.cache.kv_cache import KVCache
from jaxserve.scheduler.request import Sequence


class SharedPrefixes:
    """Full pages of the prompts of unfinished sequences, by hash. Empty where prefixes are not cached.

    Args:
        cache: what is computed already.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._pages: Counter[bytes] = Counter()

    def enter(self, sequence: Sequence) -> int:
        """A sequence arrives. Returns how many tokens of its prompt are cached, or will be by sequences before it."""
        found = self._cache.find(sequence.request.cache_root, sequence.tokens, sequence.prefix_hashes).num_tokens
        hashes = self._of(sequence)
        shared = found // self._cache.page_size
        while shared < len(hashes) and hashes[shared] in self._pages:
            shared += 1
        self._pages.update(hashes)
        shared_tokens = max(found, shared * self._cache.page_size)
        return min(shared_tokens, sequence.num_scored) if sequence.wants_scores else shared_tokens

    def leave(self, sequence: Sequence) -> None:
        """A sequence that entered ends."""
        for digest in self._of(sequence):
            self._pages[digest] -= 1
            if not self._pages[digest]:
                del self._pages[digest]

    def check(self, unfinished: ListOf[Sequence]) -> None:
        """Assert that what is counted is what the unfinished sequences that entered have."""
        assert self._pages == Counter(digest for sequence in unfinished for digest in self._of(sequence))

    def _of(self, sequence: Sequence) -> list[bytes]:
        """Hashes of the pages that any sequence with its prompt could find: all but the one with its last token."""
        return sequence.prefix_hashes[: (sequence.num_prompt - 1) // self._cache.page_size]
