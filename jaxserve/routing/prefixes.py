"""PrefixKnowledge: which replicas hold which pages, as far as a router can know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxserve.routing.fair_lru import FairLru


class PrefixKnowledge:
    """Page hash -> replicas that hold it, as bits by slot. Learned from what was sent where, and from what replicas say.

    Of each replica no more pages are known than it has room for, and than its share of `most`; where there are more, tenants with
    the most forget theirs first, the ends of prompts before their beginnings.

    Args:
        most: pages known in all, a page that several replicas hold counted for each.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: dict[bytes, int] = {}
        self._pages: dict[int, FairLru[bytes, None]] = {}
        self._capacities: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(len(pages) for pages in self._pages.values())

    def join(self, slot: int) -> None:
        if slot not in self._pages:
            self._pages[slot] = FairLru(self._most)
            for other in self._pages:  # has a smaller share now
                self._trim(other)

    def leave(self, slot: int) -> None:
        self.cleared(slot)
        del self._pages[slot]
        self._capacities.pop(slot, None)

    def holds(self, slot: int, pages: int | None) -> None:
        """A replica has room for so many that could be known; None where that is not known."""
        if pages is None:
            self._capacities.pop(slot, None)
        else:
            self._capacities[slot] = pages

    def levels(self, pages: Iterable[bytes]) -> list[tuple[int, int]]:
        """(leading pages, replicas that hold at least so many), the most pages first."""
        found: list[tuple[int, int]] = []
        holders = -1
        depth = 0
        for depth, page in enumerate(pages, 1):
            now = self._holders.get(page, 0) & holders
            if now != holders and depth > 1:
                found.append((depth - 1, holders))
            holders = now
            if not holders:
                break
        if depth and holders > 0:
            found.append((depth, holders))
        found.reverse()
        return found

    def learn(self, slot: int, pages: Sequence[bytes], tenant: str) -> None:
        """A replica computes these, one after another."""
        known, bit = self._pages[slot], 1 << slot
        for page in reversed(pages):  # the first are the last to be forgotten
            holders = self._holders.get(page, 0)
            if not holders & bit:
                self._holders[page] = holders | bit
            known.put(tenant, page, None)
        self._trim(slot)

    def removed(self, slot: int, pages: Iterable[bytes]) -> None:
        """A replica holds these no more."""
        known = self._pages[slot]
        for page in pages:
            if page in known:
                known.remove(page)
                self._lose(slot, page)

    def cleared(self, slot: int) -> None:
        """A replica holds nothing."""
        for page in self._pages[slot].clear():
            self._lose(slot, page)

    def _trim(self, slot: int) -> None:
        pages, share = self._pages[slot], self._most // len(self._pages)
        pages.most = max(min(self._capacities.get(slot, share), share), 1)
        for page in pages.trim():
            self._lose(slot, page)

    def _lose(self, slot: int, page: bytes) -> None:
        left = self._holders[page] & ~(1 << slot)
        if left:
            self._holders[page] = left
        else:
            del self._holders[page]
