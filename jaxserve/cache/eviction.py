"""The order in which cached pages are evicted: least recently used, weighted by hit frequency and prefix length.

The Multi-Queue algorithm of Zhou, Philbin and Li (USENIX ATC 2001, "The Multi-Queue Replacement Algorithm for Second Level Buffer
Caches"): levels by the logarithm of what a page is worth, least recently used first within a level, and a page that waits for a
whole lifetime without a hit goes down one level. There is no history of evicted pages. Every operation is O(1) amortised and
nothing depends on time of day.

The worth of a page is the sum, over its hits, of the pages that were matched: a long prefix is dearer to compute than a short
one. A page is in every match that its child is in, so it is worth no less. If a child is also pushed before its parent, it is
evicted before it: it starts at a level no higher and, on the same level, ahead; and the parent goes down only when it is at the
head, so after the child went, and then queues behind it.
"""

from __future__ import annotations

from collections import OrderedDict

NUM_LEVELS = 16


class MultiQueue:
    """Free cached pages in eviction order.

    Args:
        lifetime: how long a page stays on a level without a hit; `now` of every call counts in the same unit and never decreases.
    """

    def __init__(self, lifetime: int) -> None:
        self._lifetime = lifetime
        self._levels = tuple(OrderedDict[int, int]() for _ in range(NUM_LEVELS))  # page -> when it goes down
        self._level_of: dict[int, int] = {}
        self._next_expiry = lifetime  # nothing goes down earlier

    def __len__(self) -> int:
        return len(self._level_of)

    def __contains__(self, page: int) -> bool:
        return page in self._level_of

    def push(self, page: int, worth: int, now: int) -> None:
        """Queue a page as the most recently used of its level."""
        level = min(worth.bit_length(), NUM_LEVELS - 1)
        self._levels[level][page] = now + self._lifetime
        self._level_of[page] = level

    def remove(self, page: int) -> None:
        """Take a page out, wherever it is. Raises KeyError if it is not queued."""
        del self._levels[self._level_of.pop(page)][page]

    def first(self, now: int) -> int:
        """The page to evict next; it stays queued. Raises LookupError if there is none."""
        if now >= self._next_expiry:
            self._age(now)
        for level in self._levels:
            if level:
                return next(iter(level))
        raise LookupError("no page is queued")

    def clear(self) -> list[int]:
        pages = list(self._level_of)
        self._level_of.clear()
        for level in self._levels:
            level.clear()
        return pages

    def _age(self, now: int) -> None:
        self._next_expiry = expires = now + self._lifetime
        for index in range(1, NUM_LEVELS):
            level, below = self._levels[index], self._levels[index - 1]
            while level:
                page, expiry = next(iter(level.items()))
                if expiry > now:
                    self._next_expiry = min(self._next_expiry, expiry)
                    break
                del level[page]
                below[page] = expires
                self._level_of[page] = index - 1
