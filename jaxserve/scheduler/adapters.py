"""Which adapters are on the devices: sequences whose adapter has no slot wait for one, and the least recently used gives way."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Set

from jaxserve.errors import JaxserveError
from jaxserve.scheduler.request import NO_SLOT, Sequence, Status
from jaxserve.scheduler.running import OnStop
from jaxserve.step.plan import AdapterLoad

PATIENCE = 5.0  # seconds that a sequence waits for a slot while others go on to come to those that are taken

Fetch = Callable[[str], bool]
"""Whether the adapter with a key is in the host's memory; if not, it is on its way. Raises JaxserveError if it cannot be had."""


def _slot(row: tuple[Sequence, int]) -> tuple[bool, int]:
    slot = row[0].adapter_slot
    return slot == NO_SLOT, slot


class AdapterTable:
    """Slots of adapters. Those of running sequences stay where they are; the others are evicted when a slot is needed.

    So that nobody waits for ever while adapters that are in use stay in use: once a sequence has waited PATIENCE for a slot, no
    other begins that needs one.

    Attributes:
        num_slots: adapters that may be on the devices at a time.
        num_loads: adapters that came into a slot, so far.

    Args:
        pinned: keys of adapters that stay in their slots: fewer than there are.
    """

    def __init__(self, num_slots: int, fetch: Fetch, pinned: Callable[[], Set[str]] = frozenset) -> None:
        self.num_slots = num_slots
        self._fetch = fetch
        self._pinned = pinned
        self._free = list(range(num_slots))
        self._slots: OrderedDict[str, int] = OrderedDict()  # key -> slot, least recently used first
        self._users: Counter[str] = Counter()  # running sequences of each
        self._busy = 0  # adapters that have some
        self._loads: list[AdapterLoad] = []
        self._failed: list[tuple[Sequence, JaxserveError]] = []
        self._first: Sequence | None = None  # that waits for a slot
        self._since = 0.0
        self.num_loads = 0

    @property
    def resident(self) -> dict[str, int]:
        """Adapters on the devices, by key: how many running sequences have each; least recently used first."""
        return {key: self._users[key] for key in self._slots}

    def has(self, key: str) -> bool:
        """Whether an adapter is in a slot."""
        return key in self._slots

    @property
    def coming(self) -> frozenset[str]:
        """Adapters that come into slots before the next step."""
        return frozenset(load.key for load in self._loads)

    def has_place(self, sequence: Sequence, now: float) -> bool:
        """Whether the sequence's adapter, if it has one, is in a slot or could come into one. It is quickly told."""
        key = sequence.request.adapter
        if not key:
            return True
        if not self._may_begin(sequence, now):
            return False
        if key in self._slots or self._free or self._busy + self._idle_pins() < len(self._slots):
            return True
        if self._first is None:
            self._first, self._since = sequence, now
        return False

    def start(self, sequence: Sequence) -> bool:
        """Whether the sequence, which has a place, may begin: its adapter then stays in its slot until `stop`."""
        key = sequence.request.adapter
        if not key:
            return True
        if key not in self._slots and not self._bring(sequence, key):
            return False
        self._busy += not self._users[key]
        self._users[key] += 1
        self._slots.move_to_end(key)
        sequence.adapter_slot = self._slots[key]
        if self._first is sequence:
            self._first = None
        return True

    def stop(self, sequence: Sequence) -> None:
        """The sequence does not run any more."""
        if sequence.adapter_slot != NO_SLOT:
            sequence.adapter_slot = NO_SLOT
            key = sequence.request.adapter
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                self._busy -= 1

    def before(self, on_stop: OnStop) -> OnStop:
        """Tells this of sequences that stop, and then another."""

        def stopped(sequence: Sequence) -> None:
            self.stop(sequence)
            on_stop(sequence)

        return stopped

    def place(self, rows: list[tuple[Sequence, int]]) -> tuple[AdapterLoad, ...]:
        """Bring a step's rows of one adapter together, in order of their slots, those without one behind all.

        Returns the adapters that come into slots before the step.
        """
        if not rows:
            return ()
        rows.sort(key=_slot)
        loads, self._loads = tuple(self._loads), []
        return loads

    def take_failed(self) -> list[tuple[Sequence, JaxserveError]]:
        """Sequences whose adapter cannot be had, and why."""
        failed, self._failed = self._failed, []
        return failed

    def _bring(self, sequence: Sequence, key: str) -> bool:
        """Bring an adapter into a slot; False if it is not in memory yet, or cannot be had."""
        if any(failed is sequence for failed, _ in self._failed):
            return False
        evicted = None if self._free else self._evictable()
        if evicted is None and not self._free:  # others were pinned meanwhile
            return False
        try:
            if not self._fetch(key):
                return False
        except JaxserveError as error:
            self._failed.append((sequence, error))
            return False
        slot = self._free.pop(0) if evicted is None else self._slots.pop(evicted)
        self._slots[key] = slot
        self._loads.append(AdapterLoad(slot, key))
        self.num_loads += 1
        return True

    def _evictable(self) -> str | None:
        pinned = self._pinned()
        return next((one for one in self._slots if not self._users[one] and one not in pinned), None)

    def _idle_pins(self) -> int:
        return sum(key in self._slots and not self._users[key] for key in self._pinned())

    def _may_begin(self, sequence: Sequence, now: float) -> bool:
        first = self._first
        if first is None or first.status is not Status.WAITING:
            self._first = None
            return True
        return first.request.adapter == sequence.request.adapter or now - self._since < PATIENCE
