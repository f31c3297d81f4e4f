"""What becomes findable in the KV cache, and what is no more, for those outside who follow it.

Contents count, not pages, of which several may hold the same: whoever applies the events in order to what could be found before
has what can be found now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxserve.cache.prefix_hash import DIGEST_SIZE


@dataclass(frozen=True, slots=True)
class Stored:
    """Columns of a prompt, one after another, can be found in one group of layers.

    Attributes:
        root: hash of the namespace of the prompt.
        parent: hash of the column before the first; None for the start of the prompt.
        hashes: of the columns.
        tokens: of all of them.
        group: of layers.
    """

    root: bytes
    parent: bytes | None
    hashes: tuple[bytes, ...]
    tokens: tuple[int, ...]
    group: int


@dataclass(frozen=True, slots=True)
class Removed:
    """Columns can be found no more in one group of layers."""

    hashes: tuple[bytes, ...]
    group: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing can be found any more."""


CacheEvent = Stored | Removed | Cleared
CacheListener = Callable[[Sequence[CacheEvent]], None]
"""Told, by the thread that owns the cache, what happened since it was told last; must be quick."""


class CacheEvents:
    """Gathers events until they are told: what one step stores and evicts, so no more than it has pages for, twice."""

    def __init__(self) -> None:
        self._events: list[CacheEvent] = []
        self._removed: list[bytes] = []  # names, the latest events
        self.listeners: list[CacheListener] = []

    def stored(self, runs: Iterable[Stored]) -> None:
        self._take_removed()
        self._events += runs

    def removed(self, name: bytes) -> None:
        self._removed.append(name)

    def cleared(self) -> None:
        """What happened before does not matter any more."""
        self._removed.clear()
        self._events[:] = [Cleared()]

    def tell(self) -> None:
        self._take_removed()
        if self._events:
            events, self._events = self._events, []
            for listener in self.listeners:
                listener(events)

    def _take_removed(self) -> None:
        if self._removed:
            groups: dict[int, list[bytes]] = {}
            for name in self._removed:
                digest, group = split_name(name)
                groups.setdefault(group, []).append(digest)
            self._events += [Removed(tuple(hashes), group) for group, hashes in groups.items()]
            self._removed.clear()


def stored_runs(
    root: bytes, hashes: Sequence[bytes], tokens: Sequence[int], new: Sequence[bool], start: int, group: int, page_size: int
) -> Iterator[Stored]:
    """Of the columns from `start` on, `new` says which could not be found: those of them that follow one another, together."""
    first = None
    for column, is_new in enumerate((*new, False), start):
        if is_new and first is None:
            first = column
        elif not is_new and first is not None:
            parent = hashes[first - 1] if first else None
            yield Stored(root, parent, tuple(hashes[first:column]), tuple(tokens[first * page_size : column * page_size]), group)
            first = None


def name_of(digest: bytes, group: int) -> bytes:
    """What the page of a column is called in a group of layers."""
    return digest + bytes((group,)) if group else digest


def split_name(name: bytes) -> tuple[bytes, int]:
    """The column's hash and the group."""
    return name[:DIGEST_SIZE], name[DIGEST_SIZE] if len(name) > DIGEST_SIZE else 0
