"""Slots for pages outside the device's memory: which are free, and what moving costs. An executor moves the bytes."""

from __future__ import annotations

from collections.abc import Iterable


class SwapSpace:
    """Swap slots 0..slots-1, a page each.

    Args:
        slots: pages that fit; 0 for no swap space.
        page_seconds: seconds to move one page in one direction.
    """

    def __init__(self, slots: int, page_seconds: float) -> None:
        if slots < 0 or page_seconds < 0:
            raise ValueError(f"slots and page_seconds must be at least 0, got {slots} and {page_seconds}")
        self._page_seconds = page_seconds
        self._free = list(range(slots - 1, -1, -1))  # the next one last
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_taken(self) -> int:
        return len(self._taken)

    def take(self, count: int) -> list[int] | None:
        """Take `count` slots; None, changing nothing, if fewer are free."""
        if count > len(self._free):
            return None
        slots = [self._free.pop() for _ in range(count)]
        self._taken.update(slots)
        return slots

    def give_back(self, slots: Iterable[int]) -> None:
        """Free slots. Raises ValueError at one that is not taken."""
        for slot in slots:
            if slot not in self._taken:
                raise ValueError(f"swap slot {slot} is given back but was not taken")
            self._taken.remove(slot)
            self._free.append(slot)

    def seconds(self, pages: int) -> float:
        """Seconds to move this many pages in one direction."""
        return pages * self._page_seconds

    def check(self, holders: Iterable[Iterable[int]]) -> None:
        """Assert that every slot is free or held once, given the slots of every sequence."""
        held = [slot for slots in holders for slot in slots]
        assert len(held) == len(set(held)), "a swap slot is held twice"
        assert set(held) == self._taken, "taken swap slots differ from the holders'"
        assert not self._taken.intersection(self._free)
