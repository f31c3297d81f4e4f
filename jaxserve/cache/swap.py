"""Places for pages outside the device's memory: which are free, and what moving costs. An executor moves the bytes."""

from __future__ import annotations

from collections.abc import Iterable


class SwapSpace:
    """Places 0..places-1, a page each.

    Args:
        places: pages that fit; 0 for no swap space.
        page_seconds: seconds to move one page in one direction.
    """

    def __init__(self, places: int, page_seconds: float) -> None:
        if places < 0 or page_seconds < 0:
            raise ValueError(f"places and page_seconds must be at least 0, got {places} and {page_seconds}")
        self._page_seconds = page_seconds
        self._free = list(range(places - 1, -1, -1))  # the next one last
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        """Places that hold nothing."""
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """Take `count` places; None, changing nothing, if fewer are free."""
        if count > len(self._free):
            return None
        places = [self._free.pop() for _ in range(count)]
        self._taken.update(places)
        return places

    def give_back(self, places: Iterable[int]) -> None:
        """Free places. Raises ValueError at one that is not taken."""
        for place in places:
            if place not in self._taken:
                raise ValueError(f"place {place} is given back but was not taken")
            self._taken.remove(place)
            self._free.append(place)

    def seconds(self, pages: int) -> float:
        """Seconds to move this many pages in one direction."""
        return pages * self._page_seconds

    def check(self, holders: Iterable[Iterable[int]]) -> None:
        """Assert that every place is free or held once, given the places of every sequence."""
        held = [place for places in holders for place in places]
        assert len(held) == len(set(held)), "a place is held twice"
        assert set(held) == self._taken, "taken places differ from the holders'"
        assert not self._taken.intersection(self._free)
