"""BoundedWork: the token-work that replicas have in flight, and which of them may take more.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018) in token-work: a replica takes a request only
if it has at most (1 + slack) times its share of all work afterwards, plus a grain, without which a nearly idle fleet has no
homes. Requests in flight do not move, so a replica can be above the bound because others became idle; it then takes none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxserve.types import ServiceClass

Slotwise = npt.NDArray[np.bool_]

_CLASSES = tuple(ServiceClass)
_BACK = 0.5  # of slack and grain: a replica that was above the bound takes requests by affinity again below this


@dataclass(slots=True)
class _InFlight:
    slot: int
    rank: int
    prefill: int
    decode: int


class BoundedWork:
    """Accounts by slot and class. Work is whole numbers, which floats hold exactly, so that accounts come back to nothing.

    A class sees the work of its own and of higher precedence whole, and of lower ones in part: they give way. A request must keep
    the bound as its own class sees it and as every higher one does, so that batch work never pushes others over it.

    Args:
        slack: share above the mean that a replica may have.
        grain: work that a replica of weight 1 may have however idle the others are.
        yielding: share of lower classes' work that higher ones see.
    """

    def __init__(self, slack: float, grain: float, yielding: float) -> None:
        self._slack = slack
        self._grain = grain
        self._views = np.array([[1.0 if of <= by else yielding for of in range(len(_CLASSES))] for by in range(len(_CLASSES))])
        self._work = np.zeros((len(_CLASSES), 0))
        self._weights = np.zeros(0)
        self._crowded = np.zeros((len(_CLASSES), 0), bool)
        self._requests: dict[str, _InFlight] = {}
        self._of_slot: dict[int, set[str]] = {}

    @property
    def present(self) -> Slotwise:
        """Slots that replicas have."""
        present: Slotwise = self._weights > 0.0
        return present

    def join(self, slot: int, weight: float) -> None:
        missing = slot + 1 - len(self._weights)
        if missing > 0:
            self._work = np.pad(self._work, ((0, 0), (0, missing)))
            self._crowded = np.pad(self._crowded, ((0, 0), (0, missing)))
            self._weights = np.append(self._weights, np.zeros(missing))
        self._weights[slot] = weight
        self._of_slot.setdefault(slot, set())

    def leave(self, slot: int) -> set[str]:
        """Returns the requests that were its, which are in flight no more."""
        left = self._of_slot.pop(slot)
        for request in left:
            del self._requests[request]
        self._work[:, slot] = 0
        self._crowded[:, slot] = False
        self._weights[slot] = 0.0
        return left

    def take(self, request: str, slot: int, rank: int, prefill: int, decode: int) -> None:
        self._requests[request] = _InFlight(slot, rank, prefill, decode)
        self._of_slot[slot].add(request)
        self._work[rank, slot] += prefill + decode

    def started(self, request: str) -> None:
        """The prompt is computed."""
        entry = self._requests.get(request)
        if entry is not None:
            self._work[entry.rank, entry.slot] -= entry.prefill
            entry.prefill = 0

    def ended(self, request: str) -> bool:
        """Whether it was in flight."""
        entry = self._requests.pop(request, None)
        if entry is None:
            return False
        self._work[entry.rank, entry.slot] -= entry.prefill + entry.decode
        self._of_slot[entry.slot].discard(request)
        return True

    def weight(self, slot: int) -> float:
        return float(self._weights[slot])

    def work(self, slot: int) -> int:
        """In flight there, of all classes."""
        return int(self._work[:, slot].sum())

    def ahead(self, rank: int) -> npt.NDArray[np.float64]:
        """Work that a class sees at each slot, for its speed; infinite where no replica is."""
        seen = self._views[rank] @ self._work
        ahead: npt.NDArray[np.float64] = np.divide(seen, self._weights, out=np.full(len(seen), np.inf), where=self.present)
        return ahead

    def ahead_at(self, rank: int, slot: int) -> float:
        """The same at one slot that a replica has."""
        return float(self._views[rank] @ self._work[:, slot] / self._weights[slot])

    def fits(self, rank: int, work: int, wanted: Slotwise) -> Slotwise:
        """Slots that may take so much by affinity. Those of `wanted` that are above the bound are left for a while: until they
        are well below it, so that requests do not go to and fro.
        """
        shares = self._weights / max(self._weights.sum(), 1e-300)
        below = shares > 0.0
        for by in range(rank + 1):
            added = work * self._views[by, rank]
            seen = self._views[by] @ self._work
            below &= seen + added <= (1.0 + self._slack) * shares * (seen.sum() + added) + self._grain * self._weights
        back = (1.0 + _BACK * self._slack) * shares * seen.sum() + _BACK * self._grain * self._weights  # seen by its own class
        crowded = self._crowded[rank]
        crowded &= seen > back
        crowded |= wanted & ~below
        fitting: Slotwise = below & ~crowded
        return fitting
