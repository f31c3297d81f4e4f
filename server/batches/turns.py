"""Whose line is next: the engine is kept busy, its queue short, and what runs is shared out between tenants and their batches."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Load:
    """What lines take of the engine: sequences, and tokens of their prompts."""

    sequences: int = 0
    tokens: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(self.sequences + other.sequences, self.tokens + other.tokens)

    def __sub__(self, other: Load) -> Load:
        return Load(self.sequences - other.sequences, self.tokens - other.tokens)

    def fits(self, bound: Load) -> bool:
        return self.sequences <= bound.sequences and self.tokens <= bound.tokens


@dataclass(slots=True, eq=False)
class _Line:
    tenant: str
    load: Load
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turns:
    """Lets lines into the engine. The next turn is of the tenant with the least in the engine for its weight, of its batches that
    with the least, where they are alike of that whose turn is longest ago, and there first come first served.

    A line beyond the bound goes alone. Belongs to one event loop.

    Args:
        bound: what all lines together may take at the same time, where so many sequences of theirs are in the engine.
        weight: of a tenant, relative to others'.
    """

    def __init__(self, bound: Callable[[int], Load], weight: Callable[[str], float]) -> None:
        self._bound = bound
        self._weight = weight
        self._taken = Load()
        self._tenants: Counter[str] = Counter()  # sequences
        self._batches: Counter[str] = Counter()
        self._number = 0  # of turns given
        self._latest: dict[str, int] = {}  # number of a tenant's latest turn
        self._waiting: dict[str, deque[_Line]] = {}  # by batch; none is empty

    @asynccontextmanager
    async def turn(self, tenant: str, batch: str, load: Load) -> AsyncIterator[None]:
        """Wait for the turn of a line, which lasts as long as the context."""
        line = _Line(tenant, load)
        self._waiting.setdefault(batch, deque()).append(line)
        self._grant()
        try:
            await line.granted
            yield
        finally:
            if not line.granted.cancelled():
                self._count(batch, line, -1)
            elif line in self._waiting.get(batch, ()):
                self._leave(batch, line)
            self._grant()

    def _grant(self) -> None:
        while self._waiting:
            batch = min(self._waiting, key=self._rank)
            line = self._waiting[batch][0]
            if line.granted.cancelled():  # its task has not run since
                self._leave(batch, line)
                continue
            if self._tenants and not (self._taken + line.load).fits(self._bound(self._taken.sequences)):
                return
            self._leave(batch, line)
            if batch in self._waiting:  # comes after others like it
                self._waiting[batch] = self._waiting.pop(batch)
            self._count(batch, line, 1)
            self._number += 1
            self._latest[line.tenant] = self._number
            line.granted.set_result(None)
        for tenant in self._latest.keys() - self._tenants.keys():  # nobody waits: there is nothing to compare
            del self._latest[tenant]

    def _rank(self, batch: str) -> tuple[float, int, int]:
        tenant = self._waiting[batch][0].tenant
        return self._tenants[tenant] / self._weight(tenant), self._latest.get(tenant, 0), self._batches[batch]

    def _leave(self, batch: str, line: _Line) -> None:
        waiting = self._waiting[batch]
        waiting.remove(line)
        if not waiting:
            del self._waiting[batch]

    def _count(self, batch: str, line: _Line, sign: int) -> None:
        self._taken = self._taken + line.load if sign > 0 else self._taken - line.load
        for counter, name in ((self._tenants, line.tenant), (self._batches, batch)):
            counter[name] += sign * line.load.sequences
            if not counter[name]:
                del counter[name]
