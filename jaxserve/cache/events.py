"""What becomes findable in the KV cache, and what is no more, for those outside who follow it.

Contents count, not pages, of which several may hold the same: whoever applies the events in order to what could be found before
has what can be found now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from jaxserve.cache.prefix_hash import DIGEST_SIZE


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Columns of a prompt, one after another, can be found in one group of layers.

    Attributes:
        root: hash of the namespace of the prompt.
        parent: hash of the column before the first; None for the start of the prompt.
        hashes: of the columns.
        tokens: of all of them.
        first: the first column, counted from the start of the prompt.
        group: of layers.
    """

    root: bytes
    parent: bytes | None
    hashes: tuple[bytes, ...]
    tokens: tuple[int, ...]
    first: int
    group: int


class Removed(msgspec.Struct, frozen=True, gc=False):
    """Columns can be found no more in one group of layers.

    Attributes:
        hashes: of the columns, of any prompts.
        columns: counted from the starts of these.
        group: of layers.
    """

    hashes: tuple[bytes, ...]
    columns: tuple[int, ...]
    group: int


class Cleared(msgspec.Struct, frozen=True, gc=False):
    """Nothing can be found any more."""


CacheEvent = Stored | Removed | Cleared
CacheListener = Callable[[Sequence[CacheEvent]], None]
"""Told, by the thread that owns the cache, what happened since it was told last; must be quick."""


class CacheEvents:
    """Gathers events until they are told: what one step stores and evicts, so no more than it has pages for, twice."""

    def __init__(self) -> None:
        self._events: list[CacheEvent] = []
        self._removed: list[tuple[bytes, int]] = []  # names and columns; later than the events
        self.listeners: list[CacheListener] = []

    def stored(self, event: Stored) -> None:
        if self._removed:
            self._take_removed()
        self._events.append(event)

    def removed(self, name: bytes, column: int) -> None:
        self._removed.append((name, column))

    def cleared(self) -> None:
        """What happened before does not matter any more."""
        self._removed.clear()
        self._events[:] = [Cleared()]

    def tell(self) -> None:
        if self._removed:
            self._take_removed()
        if self._events:
            events, self._events = self._events, []
            for listener in self.listeners:
                listener(events)

    def _take_removed(self) -> None:
        groups: dict[int, tuple[list[bytes], list[int]]] = {}
        for name, column in self._removed:
            digest, group = split_name(name)
            hashes, columns = groups.setdefault(group, ([], []))
            hashes.append(digest)
            columns.append(column)
        self._events += [Removed(tuple(hashes), tuple(columns), group) for group, (hashes, columns) in groups.items()]
        self._removed.clear()


def name_of(digest: bytes, group: int) -> bytes:
    """What the page of a column is called in a group of layers."""
    return digest + bytes((group,)) if group else digest


def split_name(name: bytes) -> tuple[bytes, int]:
    """The column's hash and the group."""
    return name[:DIGEST_SIZE], name[DIGEST_SIZE] if len(name) > DIGEST_SIZE else 0
