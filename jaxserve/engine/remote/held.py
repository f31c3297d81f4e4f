"""What an engine's prefix cache holds, told to front ends whose routers want to know: all of it once, then what changes.

Front ends have a connection to every engine of a fleet already, in order and without gaps, so that nothing of it can be lost but
with the connection, and it is as well guarded as requests are. Changes go a few times a second, of a page only the last one, and
of prompts only the last page of every so many, which is what routers look at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxserve.cache.events import CacheEvent, Cleared, Stored, split_name
from jaxserve.engine.core import EngineCore
from jaxserve.engine.link import HeldChange


@dataclass(frozen=True, slots=True)
class Changed:
    events: Sequence[CacheEvent]


@dataclass(frozen=True, slots=True)
class Looked:
    """What somebody asked for: the names of all that was held, after what was posted before."""

    client: bytes
    names: list[bytes]


class HeldPages:
    """Follows the cache while any front end wants to know.

    Args:
        windows: of the groups of layers. Prompts count as held if their pages of the first group are that sees everything.
        post: hands over to the thread of the front ends, in order.
    """

    def __init__(self, windows: Sequence[int | None], post: Callable[[Changed | Looked], None]) -> None:
        self._group = windows.index(None) if None in windows else 0
        self._post = post
        self._follows = False
        self._watching: dict[bytes, bool] = {}  # front ends, and whether they were told what there was
        self._every = 0  # columns from one that is told to the next: all hear of what any asked for, also once it is gone
        self._cleared = False
        self._held: dict[bytes, bool] = {}  # pages that changed, and whether they are held

    # In the engine's thread.

    def look(self, core: EngineCore, client: bytes, every: int) -> None:
        """A front end wants to know of the last page of every so many."""
        prefixes = core.scheduler.cache.prefixes
        core.tell()
        if not self._follows:
            prefixes.follow(self._changed)
            self._follows = True
        self._post(Looked(client, prefixes.names(every)))

    def stop(self, core: EngineCore) -> None:
        """None does any more."""
        if self._follows:
            core.scheduler.cache.prefixes.unfollow(self._changed)
            self._follows = False

    def _changed(self, events: Sequence[CacheEvent]) -> None:
        self._post(Changed(events))

    # In the thread of the front ends.

    @property
    def told(self) -> list[bytes]:
        """Front ends that were told what there was."""
        return [client for client, told in self._watching.items() if told]

    def asked(self, client: bytes, every: int) -> None:
        self._watching[client] = False
        self._every = math.gcd(self._every, every)

    def gone(self, client: bytes) -> bool:
        """Whether it was the last that wanted to know."""
        if self._watching.pop(client, None) is None or self._watching:
            return False
        self._every = 0
        return True

    def looked(self, item: Looked) -> HeldChange | None:
        """What to tell the one who asked; None if it went away."""
        if item.client not in self._watching:
            return None
        self._watching[item.client] = True
        stored = [digest for digest, group in map(split_name, item.names) if group == self._group]
        return HeldChange(cleared=True, stored=stored)

    def changed(self, item: Changed) -> None:
        for event in item.events:
            if isinstance(event, Cleared):
                self._cleared = True
                self._held.clear()
            elif event.group == self._group and self._every:
                held = isinstance(event, Stored)
                columns = range(event.first, event.first + len(event.hashes)) if isinstance(event, Stored) else event.columns
                pages = [page for page, column in zip(event.hashes, columns, strict=True) if (column + 1) % self._every == 0]
                self._held.update(dict.fromkeys(pages, held))

    def take(self) -> HeldChange | None:
        """What changed since it was taken last; None for nothing."""
        if not self._cleared and not self._held:
            return None
        stored = [page for page, held in self._held.items() if held]
        change = HeldChange(self._cleared, [page for page, held in self._held.items() if not held], stored)
        self._cleared = False
        self._held.clear()
        return change
