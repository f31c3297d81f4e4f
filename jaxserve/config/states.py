"""How many recurrent states there is room for, and where whose are: one table of places."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StatePlaces:
    """The places of states: the empty one, those of every running sequence, snapshots.

    Attributes:
        slots: running sequences at most.
        width: places of each: one, and one for every draft that it may have in a step.
        snapshots: states that are kept of leading tokens, for prompts that begin with them.
        interval: tokens from one snapshot of a sequence to the next, about; whole pages.
    """

    slots: int
    width: int
    snapshots: int
    interval: int

    @property
    def count(self) -> int:
        """N, places in all."""
        return self.first_snapshot + self.snapshots

    @property
    def first_snapshot(self) -> int:
        return 1 + self.slots * self.width

    def own(self, slot: int) -> int:
        """The first place of the sequence in a slot; the state after the last of a step's tokens is at the last one."""
        return 1 + slot * self.width
