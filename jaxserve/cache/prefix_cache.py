"""Finds pages by the hash of their content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxserve.cache.events import CacheEvents, CacheListener


@dataclass(slots=True, eq=False)
class CacheEntry:
    """Pages with one content.

    Attributes:
        digest: hash of the content.
        pages: the pages, oldest first; several while several sequences have computed the same.
        column: of the prompt, counted from its start.
        worth: sum over hits of the pages matched, for the eviction order.
    """

    digest: bytes
    pages: list[int]
    column: int
    worth: int = 0


class PrefixCache:
    """hash of a full page -> the pages that hold it, and back. Knows nothing of reference counts.

    Attributes:
        events: gathers what happens; None while nobody follows.
    """

    def __init__(self, num_pages: int) -> None:
        self.events: CacheEvents | None = None
        self._entries: dict[bytes, CacheEntry] = {}
        self._entry_of: list[CacheEntry | None] = [None] * num_pages

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._entries

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Pages of the longest known prefix of a chain of hashes: the oldest of those that are equal."""
        pages = []
        for digest in hashes:
            entry = self._entries.get(digest)
            if entry is None:
                break
            pages.append(entry.pages[0])
        return pages

    def count_hit(self, pages: Sequence[int]) -> None:
        for page in pages:
            entry = self._entry_of[page]
            if entry is None:
                raise KeyError(page)
            entry.worth += len(pages)

    def entry(self, page: int) -> CacheEntry | None:
        """What the page holds, None if it cannot be found."""
        return self._entry_of[page]

    def insert(self, digest: bytes, page: int, column: int) -> CacheEntry:
        """Make a page findable, besides those equal to it. Does nothing to a page that is findable already."""
        entry = self._entry_of[page]
        if entry is not None:
            return entry
        entry = self._entries.get(digest)
        if entry is None:
            entry = self._entries[digest] = CacheEntry(digest, [page], column)
        else:
            entry.pages.append(page)
        self._entry_of[page] = entry
        return entry

    def remove(self, page: int) -> None:
        """Forget a page that is about to hold something else; those equal to it stay findable."""
        entry = self._entry_of[page]
        if entry is None:
            raise KeyError(page)
        self._entry_of[page] = None
        entry.pages.remove(page)
        if not entry.pages:
            del self._entries[entry.digest]
            if self.events is not None:
                self.events.removed(entry.digest, entry.column)

    def clear(self) -> None:
        if self.events is not None:
            self.events.cleared()
        self._entries.clear()
        self._entry_of = [None] * len(self._entry_of)

    def follow(self, listener: CacheListener) -> list[bytes]:
        """Tell `listener` what happens from now on. Returns the names of what can be found now."""
        self.tell()
        if self.events is None:
            self.events = CacheEvents()
        self.events.listeners.append(listener)
        return self.names()

    def names(self, every: int = 1) -> list[bytes]:
        """Of what can be found in the last of every so many columns."""
        if every == 1:
            return list(self._entries)
        return [name for name, entry in self._entries.items() if (entry.column + 1) % every == 0]

    def unfollow(self, listener: CacheListener) -> None:
        """Raises ValueError for one that does not follow."""
        if self.events is None:
            raise ValueError("nobody follows")
        self.events.listeners.remove(listener)
        if not self.events.listeners:
            self.events = None

    def tell(self) -> None:
        """Those who follow hear what happened."""
        if self.events is not None:
            self.events.tell()

    def check(self) -> None:
        found = {page: entry for entry in self._entries.values() for page in entry.pages}
        assert all(entry.pages for entry in self._entries.values()), "an entry has no page"
        assert sum(len(entry.pages) for entry in self._entries.values()) == len(found), "a page is in two entries"
        assert found == {page: entry for page, entry in enumerate(self._entry_of) if entry is not None}
