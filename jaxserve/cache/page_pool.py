"""A fixed pool of KV-cache pages with reference counts, owners, and an order in which free ones are handed out.

A page is *referenced* (count > 0) or *free*. A free page may still be known to the prefix cache: it stays valid, and can be
taken back by `share`, until `allocate` hands it out for something else. Pages that nobody can hit are handed out first, then
cached ones: the tenant's own if it is at its quota, those of tenants beyond theirs, and after that in the order of `eviction`.
Of several equal pages one is kept when all are free: a free cached page is the only one with its content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jaxserve.cache.eviction import MultiQueue
from jaxserve.cache.prefix_cache import PrefixCache
from jaxserve.cache.tenants import Account, Tenants, count_eviction

NULL_PAGE = 0  # never handed out: padding reads and writes land there

EvictionListener = Callable[[Account, int, bytes], None]
"""(owner, page, hash of its content): told before the page, the only one with this content, is handed out for something else.

Until the next plan's moves are done the page holds what it held."""


class PagePool:
    """Pages 1..num_pages-1 (page 0 is the null page).

    Args:
        num_pages: pages in the KV cache, the null page included.
        prefixes: knows which pages can be found; told of those that are handed out for something else.
        tenants: accounts that pages are charged to.
    """

    def __init__(
        self, num_pages: int, prefixes: PrefixCache, tenants: Tenants, on_eviction: Iterable[EvictionListener] = (count_eviction,)
    ) -> None:
        if num_pages < 2:
            raise ValueError(f"num_pages must be at least 2, got {num_pages}")
        self.num_pages = num_pages
        self._prefixes = prefixes
        self._tenants = tenants
        self._on_eviction = tuple(on_eviction)
        self._references = [0] * num_pages
        self._owners: list[Account | None] = [None] * num_pages  # of referenced and of free cached pages
        self._blank = list(range(num_pages - 1, 0, -1))  # free pages that nobody can find, the next one last
        self._cached = MultiQueue(num_pages - 1)  # the other free ones; a lifetime is a turnover of the whole pool
        self._num_allocated = 0  # pages ever handed out: the clock of the eviction order

    @property
    def num_free(self) -> int:
        """Pages that `allocate` could hand out now, cached ones included."""
        return len(self._blank) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Those of them that can be found."""
        return len(self._cached)

    @property
    def num_usable(self) -> int:
        """Pages that one sequence could use with the pool to itself."""
        return self.num_pages - 1

    def allocate(self, count: int, account: Account) -> list[int]:
        """Hand out `count` pages to a tenant with one reference each. Raises MemoryError, changing nothing, if fewer are free."""
        if count > self.num_free:
            raise MemoryError(f"{count} pages asked for, {self.num_free} free of {self.num_usable}")
        self._num_allocated += count
        pages = [self._blank.pop() for _ in range(min(count, len(self._blank)))]
        self._tenants.add_pages(account, len(pages))
        pages += [self._evict(account) for _ in range(count - len(pages))]
        for page in pages:
            self._references[page] = 1
            self._owners[page] = account
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add a reference to each page; free ones must be cached (KeyError)."""
        for page in pages:
            if self._references[page] == 0:
                self._take_cached(page)
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop a reference to each page. Free cached pages queue for eviction in the order given."""
        for page in pages:
            if self._references[page] <= 0:
                raise ValueError(f"page {page} is released more often than it was taken")
            self._references[page] -= 1
            if self._references[page] > 0:
                continue
            entry = self._prefixes.entry(page)
            if entry is None:
                self._discard(page)
            elif len(entry.pages) > 1:  # an equal page stays
                self._prefixes.remove(page)
                self._discard(page)
            else:
                self._cached.push(page, entry.worth, self._num_allocated)
                self._tenants.add_cached(self._owner(page), page, entry.worth, self._num_allocated)

    def insert(self, digest: bytes, page: int, column: int) -> None:
        """Make a referenced page, of a column of its prompt, findable. A free page with the same content is no longer needed."""
        oldest = self._prefixes.insert(digest, page, column).pages[0]
        if self._references[oldest] == 0:
            self._take_cached(oldest)
            self._prefixes.remove(oldest)
            self._discard(oldest)

    def forget(self) -> None:
        """No page can be found any more; free ones stay free."""
        self._prefixes.clear()
        for page in self._cached.clear():
            self._tenants.remove_cached(self._owner(page), page)
            self._discard(page)

    def give_to(self, pages: Iterable[int], account: Account) -> None:
        for page in pages:
            self._tenants.add_pages(account, 1)
            self._tenants.remove_page(self._owner(page))
            self._owners[page] = account

    def num_references(self, page: int) -> int:
        return self._references[page]

    def count_held(self, pages: Iterable[int], times: int) -> int:
        """How many of the pages are held by exactly so many."""
        return [*map(self._references.__getitem__, pages)].count(times)

    def check(self, holders: Iterable[Iterable[int]]) -> None:
        """Assert the invariants, given the pages of every holder: counts match, free + referenced == all, owners are charged."""
        counts = [0] * self.num_pages
        for pages in holders:
            for page in pages:
                counts[page] += 1
        assert counts[NULL_PAGE] == 0, "the null page is held"
        assert counts == self._references, "reference counts differ from the holders'"
        free = {page for page in range(1, self.num_pages) if counts[page] == 0}
        assert len(free) == self.num_free, "the free list differs from the unreferenced pages"
        assert free == {page for page in free if page in self._cached} | set(self._blank), (
            "the free list differs from the unreferenced pages"
        )
        self._prefixes.check()
        for page in free:
            entry = self._prefixes.entry(page)
            assert (entry is not None) == (page in self._cached), f"free page {page} is findable or queued, not both"
            assert entry is None or len(entry.pages) == 1, f"free page {page} is kept besides an equal one"
        for page in range(self.num_pages):
            owned = counts[page] > 0 or page in self._cached
            assert owned == (self._owners[page] is not None), f"page {page} is charged to nobody, or free and charged"
        self._tenants.check((owner, counts[page] == 0) for page, owner in enumerate(self._owners))

    def _owner(self, page: int) -> Account:
        owner = self._owners[page]
        assert owner is not None
        return owner

    def _take_cached(self, page: int) -> Account:
        """A free cached page is about to be referenced or discarded; returns its owner."""
        self._cached.remove(page)
        owner = self._owner(page)
        self._tenants.remove_cached(owner, page)
        return owner

    def _discard(self, page: int) -> None:
        self._tenants.remove_page(self._owner(page))
        self._owners[page] = None
        self._blank.append(page)

    def _evict(self, account: Account) -> int:
        """Take a cached page for this tenant from whoever must give one."""
        queue = self._tenants.queue_to_evict(account) or self._cached
        page = queue.first(self._num_allocated)
        entry = self._prefixes.entry(page)
        assert entry is not None
        owner = self._take_cached(page)
        for listener in self._on_eviction:
            listener(owner, page, entry.digest)
        self._prefixes.remove(page)
        if owner is not account:
            self._tenants.add_pages(account, 1)
            self._tenants.remove_page(owner)
        return page
