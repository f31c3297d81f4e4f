"""Finds pages by the hash of their content."""

from __future__ import annotations

from collections.abc import Sequence


class PrefixCache:
    """hash of a full page -> page, and back. Knows nothing of reference counts."""

    def __init__(self) -> None:
        self._page_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._page_of)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Pages of the longest known prefix of a chain of hashes."""
        pages = []
        for digest in hashes:
            page = self._page_of.get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def insert(self, digest: bytes, page: int) -> bool:
        """Remember a page; False if an equal page is known already (the older one stays, so chains keep their pages)."""
        if digest in self._page_of:
            return False
        self._page_of[digest] = page
        self._hash_of[page] = digest
        return True

    def remove(self, page: int) -> None:
        """Forget a page that is about to hold something else."""
        del self._page_of[self._hash_of.pop(page)]
