"""FairLru: a bounded map that forgets what was used least recently, of the groups that hold more than their share."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_SPARED = 16  # one part in so many is freed at once, so that shares are worked out rarely


class FairLru(Generic[K, V]):
    """Keys have values and belong to groups. Where there are too many, the largest groups give up their oldest, down to an equal
    share; so what one group adds never costs another one that has less.

    Attributes:
        most: keys at most, after `trim`.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._groups: OrderedDict[str, OrderedDict[K, V]] = OrderedDict()  # what was used last at the end, in both
        self._group_of: dict[K, str] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, key: K) -> bool:
        return key in self._group_of

    def get(self, key: K) -> V | None:
        group = self._group_of.get(key)
        return None if group is None else self._groups[group][key]

    def put(self, group: str, key: K, value: V) -> None:
        """Set it, as the latest used; a key stays in the group that it was first put into."""
        group = self._group_of.setdefault(key, group)
        keys = self._groups.get(group)
        if keys is None:
            keys = self._groups[group] = OrderedDict()
        else:
            self._groups.move_to_end(group)
        keys[key] = value
        keys.move_to_end(key)

    def remove(self, key: K) -> None:
        """Nothing happens if it is not there."""
        group = self._group_of.pop(key, None)
        if group is not None:
            self._drop(group, key)

    def clear(self) -> list[K]:
        """Forget all. Returns the forgotten keys."""
        keys = list(self._group_of)
        self._groups.clear()
        self._group_of.clear()
        return keys

    def trim(self) -> list[K]:
        """Forget what is too much, and a little more. Returns the forgotten keys."""
        if len(self) <= self.most:
            return []
        room = self.most - self.most // _SPARED
        share = max(_share(sorted(len(keys) for keys in self._groups.values()), room), 1)
        forgotten: list[K] = []
        for group, keys in list(self._groups.items()):
            while len(keys) > share:
                forgotten.append(self._oldest(group, keys))
        for group, keys in list(self._groups.items()):  # more groups than room: those used least recently
            if len(self) <= room:
                break
            forgotten.append(self._oldest(group, keys))
        return forgotten

    def _oldest(self, group: str, keys: OrderedDict[K, V]) -> K:
        key = next(iter(keys))
        del self._group_of[key]
        self._drop(group, key)
        return key

    def _drop(self, group: str, key: K) -> None:
        keys = self._groups[group]
        del keys[key]
        if not keys:
            del self._groups[group]


def _share(sizes: list[int], room: int) -> int:
    """The most that each may keep so that all of these ascending sizes fit."""
    for place, size in enumerate(sizes):
        left = len(sizes) - place
        if size * left >= room:
            return room // left
        room -= size
    return sizes[-1] if sizes else 0
