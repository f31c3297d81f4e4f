"""Recurrent states beside the pages: what a snapshot of leading tokens is good for, and which one makes way for another.

A layer that keeps a state instead of keys and values cannot go on from any prefix: only from one whose state somebody kept.
Snapshots are found by the hash of the column that ends where they were taken, as pages are; the least recently used one makes
way. Sequences have places of their own, which this knows nothing of (`config.states.StatePlaces`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence

from jaxserve.cache.sequence_pages import SequenceState
from jaxserve.config.states import StatePlaces


class StatePool:
    """Snapshots.

    Attributes:
        places: how many there are, and where.
        num_evicted: snapshots that made way, so far.
    """

    def __init__(self, places: StatePlaces) -> None:
        self.places = places
        self.num_evicted = 0
        self._free = list(range(places.count - 1, places.first_snapshot - 1, -1))
        self._kept: OrderedDict[bytes, int] = OrderedDict()  # the next one to make way first
        self._uses: Counter[bytes] = Counter()
        self._pinned: set[bytes] = set()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._kept

    @property
    def num_kept(self) -> int:
        """Snapshots that can be found."""
        return len(self._kept)

    def find(self, digests: Sequence[bytes]) -> int:
        """How many columns of a chain the longest of its prefixes has that there is a snapshot of."""
        return next((count for count in range(len(digests), 0, -1) if digests[count - 1] in self._kept), 0)

    def use(self, digest: bytes) -> None:
        """A sequence goes on from the snapshot, or would have made it."""
        self._kept.move_to_end(digest)
        self._uses[digest] += 1

    def restore(self, state: SequenceState, digest: bytes, *, goes_on: bool) -> None:
        """A sequence begins with the snapshot, which nobody overwrites before the next `take` that does not call its place busy.

        `goes_on` is whether it will leave one of its own at its prompt's end.
        """
        self.use(digest)
        state.restored = self._kept[digest]
        state.origin = digest if goes_on else None

    def take_for(self, state: SequenceState, busy: Collection[int]) -> int | None:
        """A place for a later snapshot of a sequence, none of the busy ones but for one that only this sequence reads.

        A conversation goes on from the snapshot of its last turn, which nobody else used: it is left where that one is.
        """
        spent = self._supersede(state.latest), self._supersede(state.origin, uses=1)
        return self.take([place for place in busy if place not in spent])

    def take(self, busy: Collection[int]) -> int | None:
        """A place for a snapshot, none of the busy ones; None if there is none."""
        if self._free:
            return self._free.pop()
        digest = next((d for d, place in self._kept.items() if place not in busy and d not in self._pinned), None)
        if digest is None:
            return None
        self.num_evicted += 1
        del self._uses[digest]
        return self._kept.pop(digest)

    def insert(self, digest: bytes, place: int) -> None:
        """A snapshot can be found from now on. Of two with the same content the first stays."""
        if digest in self._kept:
            self._free.append(place)
        else:
            self._kept[digest] = place

    def give_back(self, places: Iterable[int]) -> None:
        """Places of snapshots that cannot be found yet."""
        self._free += places

    def pin(self, digests: Sequence[bytes]) -> None:
        """The longest prefix's snapshot makes way for none, until `unpin_all`."""
        if count := self.find(digests):
            self._pinned.add(digests[count - 1])

    def unpin_all(self) -> None:
        self._pinned.clear()

    def forget(self) -> None:
        """Nothing can be found any more."""
        self._free += self._kept.values()
        self._kept.clear()
        self._uses.clear()
        self._pinned.clear()

    def check(self, pending: Iterable[int]) -> None:
        """Assert that every place is one snapshot's, given those that cannot be found yet, or free."""
        places = [*self._free, *self._kept.values(), *pending]
        assert sorted(places) == list(range(self.places.first_snapshot, self.places.count)), "a place is lost, or held twice"
        assert self._uses.keys() <= self._kept.keys(), "a snapshot that is gone counts as used"
        assert self._pinned <= self._kept.keys(), "a snapshot is pinned that is gone"

    def _supersede(self, digest: bytes | None, uses: int = 0) -> int | None:
        """A snapshot of a sequence that leaves a later one: unless it was used more often, it makes way first. Its place then."""
        if digest is None or digest not in self._kept or self._uses[digest] > uses:
            return None
        self._kept.move_to_end(digest, last=False)
        return self._kept[digest]
