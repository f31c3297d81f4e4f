"""A fixed pool of KV-cache pages with reference counts and a free list in eviction order.

A page is *referenced* (count > 0) or *free*. A free page may still be known to the prefix cache: it stays valid, and can be
taken back by `share`, until `allocate` hands it out for something else. Pages are handed out from the front of the free list;
pages nobody can hit are put at its front, cached ones at its back, so what was used longest ago is evicted first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

NULL_PAGE = 0  # never handed out: padding reads and writes land there


class PagePool:
    """Pages 1..num_pages-1 (page 0 is the null page).

    Args:
        num_pages: pages in the KV cache, the null page included.
        on_evict: called with a cached page that is about to be used for something else.
    """

    def __init__(self, num_pages: int, on_evict: Callable[[int], None]) -> None:
        if num_pages < 2:
            raise ValueError(f"num_pages must be at least 2, got {num_pages}")
        self.num_pages = num_pages
        self._references = [0] * num_pages
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_pages))
        self._cached: set[int] = set()
        self._on_evict = on_evict

    @property
    def num_free(self) -> int:
        """Pages that `allocate` could hand out now, cached ones included."""
        return len(self._free)

    @property
    def num_usable(self) -> int:
        """Pages that one sequence could use with the pool to itself."""
        return self.num_pages - 1

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` pages with one reference each. Raises MemoryError, changing nothing, if fewer are free."""
        if count > len(self._free):
            raise MemoryError(f"{count} pages asked for, {len(self._free)} free of {self.num_usable}")
        pages = [self._free.popitem(last=False)[0] for _ in range(count)]
        for page in pages:
            self._references[page] = 1
            if page in self._cached:
                self._cached.remove(page)
                self._on_evict(page)
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add a reference to each page, taking free ones off the free list."""
        for page in pages:
            if self._references[page] == 0:
                del self._free[page]
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop a reference to each page. Free pages queue for eviction in the order given."""
        for page in pages:
            if self._references[page] <= 0:
                raise ValueError(f"page {page} is released more often than it was taken")
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free[page] = None
                if page not in self._cached:
                    self._free.move_to_end(page, last=False)

    def mark_cached(self, page: int) -> None:
        """The prefix cache can find this page from now on."""
        self._cached.add(page)

    def is_free(self, page: int) -> bool:
        """Whether nobody references the page; shared prefix pages may be free too."""
        return self._references[page] == 0

    def check(self, holders: Iterable[Iterable[int]]) -> None:
        """Assert the invariants, given the pages of every sequence: counts match holders, free + referenced == all."""
        counts = [0] * self.num_pages
        for pages in holders:
            for page in pages:
                counts[page] += 1
        assert counts[NULL_PAGE] == 0, "the null page is held"
        assert counts == self._references, "reference counts differ from the holders'"
        free = {page for page in range(1, self.num_pages) if counts[page] == 0}
        assert free == set(self._free), "the free list differs from the unreferenced pages"
