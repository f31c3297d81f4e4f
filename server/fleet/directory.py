"""The directory: which replicas there are, and where. It keeps nothing that replicas do not tell it again within a second."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

TELL_SECONDS = 1.0  # between two words of a replica
LEASE_SECONDS = 10.0  # after the last word of a replica until it is struck off


@dataclass(frozen=True, slots=True)
class Listing:
    """A replica that takes requests.

    Attributes:
        replica: unique among all that there ever were.
        address: ZeroMQ endpoint of its engine.
        pool: the one it belongs to.
        weight: its speed, as a multiple of others'.
    """

    replica: str
    address: str
    pool: str
    weight: float


@dataclass(frozen=True, slots=True)
class Edition:
    """What the directory holds.

    Attributes:
        number: another one for every change.
        whole: whether every replica has had the time to say that it is there.
    """

    number: str
    whole: bool
    listings: tuple[Listing, ...]


@dataclass(slots=True)
class _Entry:
    listing: Listing
    heard: float


@dataclass(slots=True)
class _State:
    entries: dict[str, _Entry] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)  # replicas that said goodbye, and when: a late word brings none back


class Directory:
    """All replicas of a fleet. Belongs to one event loop.

    A directory that was just started knows less than there is: until a lease is over it is not `whole`, and whoever asks keeps
    what it knew.

    Args:
        name: unique among the directories that there ever were.
        now: a monotonic clock, seconds.
    """

    def __init__(self, name: str, now: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._now = now
        self._state = _State()
        self._changes = 0
        self._opened = now()
        self._changed = asyncio.Event()

    def tell(self, listing: Listing) -> None:
        """A replica takes requests; told again and again."""
        if listing.replica in self._state.left:
            return
        entry = self._state.entries.get(listing.replica)
        if entry is not None and entry.listing == listing:
            entry.heard = self._now()
            return
        self._state.entries[listing.replica] = _Entry(listing, self._now())
        self._change()

    def leave(self, replica: str) -> None:
        """A replica takes no more requests."""
        self._state.left[replica] = self._now()
        if self._state.entries.pop(replica, None) is not None:
            self._change()

    def edition(self) -> Edition:
        self._strike_off()
        whole = self._now() - self._opened >= LEASE_SECONDS
        listings = tuple(entry.listing for _, entry in sorted(self._state.entries.items()))
        return Edition(f"{self._name}.{self._changes}{'' if whole else '+'}", whole, listings)

    async def next_edition(self, number: str, seconds: float) -> Edition:
        """The first that is not this one, or this one after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (edition := self.edition()).number == number:
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(TELL_SECONDS):  # leases end without a word
                            await self._changed.wait()
                return edition
        return self.edition()

    def _strike_off(self) -> None:
        before = self._now() - LEASE_SECONDS
        silent = [name for name, entry in self._state.entries.items() if entry.heard < before]
        for name in silent:
            del self._state.entries[name]
        if silent:
            self._change()
        for name in [name for name, at in self._state.left.items() if at < before]:
            del self._state.left[name]

    def _change(self) -> None:
        self._changes += 1
        self._changed.set()
