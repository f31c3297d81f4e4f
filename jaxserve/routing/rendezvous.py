"""Rendezvous hashing: for each key, every replica has a score of its own; the highest is the key's home.

A replica that joins takes from each other the keys that it scores highest for, one in N; one that leaves leaves its keys to their
second. Nothing else moves (Thaler and Ravishankar 1998; weights as by Schindelhauer and Schomaker 2005).
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_ABSENT = np.uint64(0)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of splitmix64
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_DROPPED = np.uint64(12)  # bits: with the half that is added, a float64 holds the others exactly, and none becomes 1


class Rendezvous:
    """Scores of replicas, by slot."""

    def __init__(self) -> None:
        self._seeds = np.zeros(0, np.uint64)
        self._weights = np.zeros(0)

    def join(self, slot: int, replica: str, weight: float) -> None:
        missing = slot + 1 - len(self._seeds)
        if missing > 0:
            self._seeds = np.append(self._seeds, np.zeros(missing, np.uint64))
            self._weights = np.append(self._weights, np.zeros(missing))
        self._seeds[slot] = _number(hashlib.blake2b(replica.encode(), digest_size=8).digest())
        self._weights[slot] = weight

    def leave(self, slot: int) -> None:
        self._seeds[slot] = _ABSENT
        self._weights[slot] = 0.0

    def scores(self, key: bytes) -> npt.NDArray[np.float64]:
        """Of every slot for a key; 0 for slots that no replica has, above 0 for the others. In proportion to their weights,
        replicas score highest.
        """
        bits = self._seeds ^ _number(key)
        bits = (bits ^ (bits >> _SHIFTS[0])) * _MIX[0]
        bits = (bits ^ (bits >> _SHIFTS[1])) * _MIX[1]
        bits ^= bits >> _SHIFTS[2]
        uniform = ((bits >> _DROPPED).astype(np.float64) + 0.5) * 2.0**-52
        scores: npt.NDArray[np.float64] = -self._weights / np.log(uniform)
        return scores


def _number(digest: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(digest[:8], "little"))
