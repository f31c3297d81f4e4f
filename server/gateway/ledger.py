"""The one place that all front ends share: what tenants have taken, and results under keys of clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from jaxserve.clock import Clock
from server.gateway.accounts import Accounts
from server.gateway.messages import (
    Claim,
    Done,
    Forget,
    Keep,
    ListKept,
    Message,
    Peek,
    Release,
    Reply,
    Reserve,
    Revoke,
    Revoked,
    Settle,
    Share,
    Watch,
)
from server.gateway.results import Results

_LOG = logging.getLogger(__name__)
_MICROSECONDS = 1_000_000


class UsageLedger(Protocol):
    """The ledger as a front end sees it."""

    async def ask(self, message: Message) -> Reply:
        """The answer. Raises JaxserveError if the ledger cannot be reached."""
        ...

    def tell(self, message: Message) -> None:
        """Send something whose answer nobody waits for: it gets there even if the caller is cancelled."""
        ...


class Ledger(Protocol):
    """The ledger as it is told by whoever has front ends."""

    def handle(self, message: Message) -> Reply | Awaitable[Reply]:
        """The answer, at once or later; then it may raise a JaxserveError."""
        ...

    def forget(self, message: Forget) -> None:
        """A front end is gone."""
        ...


class LedgerState:
    """The ledger itself: one message at a time, on one clock.

    Args:
        clock: tells the time; it must be monotonic.
        unix_time: of the machine now, seconds; read once, so that its clock may be set without harm.
    """

    def __init__(self, clock: Clock, unix_time: float) -> None:
        self._clock = clock
        self._results = Results()
        self._accounts = Accounts(int(unix_time * _MICROSECONDS) - self._now())

    def handle(self, message: Message) -> Reply:
        now = self._now()
        if isinstance(message, Reserve):
            return self._accounts.reserve(message, now)
        if isinstance(message, Peek):
            return self._accounts.peek(message.tenant, message.limits, now)
        if isinstance(message, Claim):
            return self._results.claim(message, self._clock.now())
        if isinstance(message, Watch):
            return self._results.wanted(message.owner, self._clock.now())
        if isinstance(message, Revoke):
            return Revoked(self._results.revoke((message.scope, message.key), self._clock.now()))
        if isinstance(message, ListKept):
            return self._results.listed(message, self._clock.now())
        if isinstance(message, Settle):
            self._accounts.settle(message, now)
        elif isinstance(message, Keep):
            self._results.keep(message, self._clock.now())
        elif isinstance(message, Release):
            self._results.release(message.token, (message.scope, message.key))
        elif isinstance(message, Share):
            self._results.share(message)
        else:
            self.forget(message)
        return Done()

    def forget(self, message: Forget) -> None:
        self._accounts.forget(message.owner, self._now())
        self._results.forget(message.owner)

    def _now(self) -> int:
        return int(self._clock.now() * _MICROSECONDS)


class LocalUsageLedger:
    """The ledger of the only front end."""

    def __init__(self, state: LedgerState) -> None:
        self._state = state

    async def ask(self, message: Message) -> Reply:
        return self._state.handle(message)

    def tell(self, message: Message) -> None:
        self._state.handle(message)


class RemoteUsageLedger:
    """The ledger in another process.

    Args:
        call: sends a message there and returns its answer; raises JaxserveError if it cannot.
    """

    def __init__(self, call: Callable[[Message], Awaitable[Reply | None]]) -> None:
        self._call = call
        self._told: set[asyncio.Task[Reply]] = set()

    async def ask(self, message: Message) -> Reply:
        reply = await self._call(message)
        assert reply is not None, "the ledger answers whatever it is asked"
        return reply

    def tell(self, message: Message) -> None:
        """Send a message; a failure is logged."""
        task = asyncio.create_task(self.ask(message))
        self._told.add(task)
        task.add_done_callback(self._on_told)

    async def close(self) -> None:
        """Wait until everything has been told."""
        await asyncio.gather(*self._told, return_exceptions=True)

    def _on_told(self, task: asyncio.Task[Reply]) -> None:
        self._told.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("the ledger was not told: %s", task.exception())
