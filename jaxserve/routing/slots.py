"""Slots: small numbers for replicas, which arrays and bit masks are indexed by."""

from __future__ import annotations


class Slots:
    """A replica's number stays the same while it is there; one that left leaves its number to the next that joins."""

    def __init__(self) -> None:
        self._names: list[str | None] = []
        self._slots: dict[str, int] = {}

    def __len__(self) -> int:
        """Replicas that are there."""
        return len(self._slots)

    def get(self, replica: str) -> int | None:
        return self._slots.get(replica)

    def name(self, slot: int) -> str:
        name = self._names[slot]
        if name is None:
            raise KeyError(slot)
        return name

    def join(self, replica: str) -> int:
        """Its number; that which it has if it is there."""
        slot = self._slots.get(replica)
        if slot is not None:
            return slot
        slot = next((place for place, name in enumerate(self._names) if name is None), len(self._names))
        if slot == len(self._names):
            self._names.append(replica)
        else:
            self._names[slot] = replica
        self._slots[replica] = slot
        return slot

    def leave(self, replica: str) -> int | None:
        """The number that it had; None if it was not there."""
        slot = self._slots.pop(replica, None)
        if slot is not None:
            self._names[slot] = None
        return slot
