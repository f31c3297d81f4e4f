"""The ledger of one ingress of several: grants out of shares that it draws from the one that all share."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from jaxserve.clock import Clock
from jaxserve.config.keys_file import NO_LIMITS, TenantLimits
from jaxserve.errors import JaxserveError, OverloadedError
from server.gateway.account import FIRST_GUESS, NOTHING, Amounts, estimate_of, learned, need_of, too_large
from server.gateway.messages import (
    Claim,
    Claimed,
    Done,
    Forget,
    Granted,
    Keep,
    Level,
    Levels,
    Listed,
    ListKept,
    Message,
    Peek,
    Refused,
    Release,
    Reply,
    Reserve,
    Revoke,
    Revoked,
    Settle,
    Share,
    Wanted,
    Watch,
)
from server.gateway.shared import (
    BEAT_SECONDS,
    LEASE_SECONDS,
    Beat,
    Draw,
    Drawn,
    GiveBack,
    News,
    OwnersGone,
    Seen,
    Shared,
    SharedReply,
    Standing,
)

_MAX_UNTOLD = 4096  # words to the shared ledger that did not come through

_LOG = logging.getLogger(__name__)

SPARE_SHARE = 8  # of a limit a minute, and of requests at the same time, all ingresses together hold this part at most
SPARE_OF_DAY = 100  # likewise of the tokens of a day
RETRY_SECONDS = 1.0  # told to clients while the ledger cannot be reached

Ask = Callable[[Shared], Awaitable[SharedReply]]
"""Asks the shared ledger. Raises JaxserveError if it cannot be reached, or says so."""


@dataclass(slots=True)
class _Tenant:
    """Of one tenant.

    Attributes:
        held: drawn and free.
        busy: whether anything was asked for since the last word to the shared ledger.
        levels: that the shared ledger last told of.
        output_mean: tokens of one output, learned here.
    """

    limits: TenantLimits = NO_LIMITS
    held: Amounts = NOTHING
    busy: bool = False
    levels: Levels = field(default_factory=Levels)
    seen: Seen = field(default_factory=Seen)
    output_mean: float = FIRST_GUESS


@dataclass(frozen=True, slots=True)
class _Reservation:
    owner: str
    tenant: str
    charged: Amounts
    day: int


class LeasedLedger:
    """Answers front ends as LedgerState does, at once where it holds enough. Belongs to one event loop.

    What it holds was taken from the tenant's limits before. So together ingresses never admit more than the limits and what all
    of them may hold, which is 1 / SPARE_SHARE of a limit, in any time. A share that it may not need it gives back.

    Args:
        ingress: its name, which no other ever had.
        among: how many ingresses there are.
        admits: whether requests are let in beyond what is held where the shared ledger cannot be reached; else they are refused.
    """

    def __init__(self, ingress: str, ask: Ask, clock: Clock, *, among: int, admits: bool) -> None:
        self._ingress = ingress
        self._ask = ask
        self._clock = clock
        self._among = among
        self._admits = admits
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)
        self._reservations: dict[str, _Reservation] = {}
        self._waiting: set[str] = set()  # reservations that are asked for
        self._given_up: set[str] = set()  # of those, the ones that nobody waits for any more
        self._gone: set[str] = set()  # owners
        self._told: set[asyncio.Task[None]] = set()
        self._untold: deque[Shared] = deque(maxlen=_MAX_UNTOLD)  # told again with the next word that comes through
        self._heard = clock.now()
        self._lapsed = False  # whether the shared ledger has said nothing for so long that nothing that is held counts
        self.addresses: tuple[str, str] | None = None

    def handle(self, message: Message) -> Reply | Awaitable[Reply]:
        match message:
            case Reserve():
                return self._reserve(message)
            case Settle():
                self._settle(message)
            case Peek():
                return self._peek(message)
            case Claim():
                return self._claim(msgspec.structs.replace(message, owner=self._name(message.owner)))
            case Watch():
                return self._asked_of_all(msgspec.structs.replace(message, owner=self._name(message.owner)))
            case Share() | Revoke() | ListKept():
                return self._asked_of_all(message)
            case Keep() | Release():
                self._tell(self._passed_on(message))
            case Forget():
                self.forget(message)
        return Done()

    def forget(self, message: Forget) -> None:
        self._gone.add(message.owner)
        for name in [name for name, one in self._reservations.items() if one.owner == message.owner]:
            self._close(self._reservations.pop(name), None)
        self._tell(self._passed_on(OwnersGone([self._name(message.owner)])))

    async def keep(self) -> None:
        """Tell the shared ledger that this ingress is there, until cancelled."""
        while True:
            await self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    async def beat(self) -> None:
        """One word to the shared ledger; what is held is let go where it has said nothing for too long."""
        if self.addresses is None:
            return
        running: Counter[str] = Counter()
        for one in self._reservations.values():
            running[one.tenant] += one.charged.slots
        tenants = {name: Standing(one.seen, running[name] + one.held.slots) for name, one in self._tenants.items()}
        try:
            news = await self._asked(Beat(self.addresses, tenants))
        except JaxserveError as error:
            _LOG.warning("the fleet's ledger does not answer: %s", error.message)
            self._lapsed = self._clock.now() - self._heard > LEASE_SECONDS
            return
        assert isinstance(news, News)
        untold, self._untold = list(self._untold), deque(maxlen=_MAX_UNTOLD)
        for message in untold:  # twice does no harm: the ledger knows by the run's token, or the owner, whether it counts
            self._tell(self._passed_on(message))
        for name, seen in news.seen.items():
            self._see(self._tenants[name], seen)
        if self._lapsed:  # the ledger may have given others the places that were free here
            self._lapsed = False
            for name, tenant in self._tenants.items():
                free = Amounts(slots=max(tenant.held.slots, 0))
                tenant.held -= free
                self._give_back(name, free)
        for name, tenant in self._tenants.items():
            self._even_out(name)
            tenant.busy = False

    def _reserve(self, ask: Reserve) -> Granted | Refused | Awaitable[Granted | Refused]:
        tenant = self._tenants[ask.tenant]
        tenant.limits, tenant.busy = ask.limits, True
        tokens = estimate_of(ask, tenant.output_mean)
        refused = too_large(ask, tokens, self._levels(tenant))
        if refused is not None:
            return refused
        need = _limited(need_of(ask, tokens), ask.limits)
        if need.least(self._held(tenant)) != need:
            self._waiting.add(ask.reservation)
            return self._draw(ask, tenant, need)
        tenant.held -= need
        return self._granted(ask, tenant, need, tenant.seen.day)

    async def _draw(self, ask: Reserve, tenant: _Tenant, need: Amounts) -> Granted | Refused:
        """Draw what is missing. What is there is set aside meanwhile: others must not count on it."""
        aside, day = need.least(self._held(tenant)), tenant.seen.day
        tenant.held -= aside
        spare = (self._spare(ask.limits) - tenant.held).at_least(NOTHING)
        try:
            reply = await self._asked(Draw(ask.tenant, ask.limits, need - aside, spare))
        except JaxserveError as error:
            if not self._admits:
                tenant.held += aside
                self._even_out(ask.tenant)
                raise OverloadedError(
                    f"the limits of tenant {ask.tenant!r} cannot be looked at now: {error.message}", retry_after=RETRY_SECONDS
                ) from error
            tenant.held -= need - aside  # a debt, which is told when it can be
            return self._granted(ask, tenant, need, day)
        except BaseException:
            tenant.held += aside
            raise
        finally:
            self._waiting.discard(ask.reservation)
            given_up = ask.reservation in self._given_up or ask.owner in self._gone
            self._given_up.discard(ask.reservation)
        if isinstance(reply, Refused):
            tenant.held += aside
            tenant.levels = reply.levels
            self._even_out(ask.tenant)
            return _in_whole(reply, need, aside, self._levels(tenant))
        assert isinstance(reply, Drawn)
        tenant.levels = reply.levels
        self._see(tenant, reply.seen)
        tenant.held += reply.amounts - (need - aside)
        # What is partly of the day before is not given back to this one.
        granted = self._granted(ask, tenant, need, day if aside.day else tenant.seen.day)
        if given_up:
            self._settle(Settle(ask.reservation, 0, 0, 0))
        self._even_out(ask.tenant)
        return granted

    def _granted(self, ask: Reserve, tenant: _Tenant, need: Amounts, day: int) -> Granted:
        self._reservations[ask.reservation] = _Reservation(ask.owner, ask.tenant, need, day)
        return Granted(self._levels(tenant))

    def _settle(self, told: Settle) -> None:
        if told.reservation in self._waiting:
            self._given_up.add(told.reservation)
        reservation = self._reservations.pop(told.reservation, None)
        if reservation is None:
            return
        tenant = self._tenants[reservation.tenant]
        tenant.output_mean = learned(tenant.output_mean, told.output_tokens, told.finished)
        self._close(reservation, told.prompt_tokens + told.output_tokens)

    def _close(self, reservation: _Reservation, tokens: int | None) -> None:
        """Take back what a request did not take, or what it owes, and the place that it had; None took what was estimated."""
        tenant, charged = self._tenants[reservation.tenant], reservation.charged
        left = Amounts(slots=charged.slots)
        if tokens is not None:
            left += Amounts(
                tokens=charged.tokens - tokens if charged.tokens else 0,
                day=charged.day - tokens if charged.day and reservation.day == tenant.seen.day else 0,
            )
        tenant.held += left
        self._even_out(reservation.tenant)

    def _see(self, tenant: _Tenant, seen: Seen) -> None:
        if seen.day < tenant.seen.day:  # of a ledger that was started again, and knows less
            return
        if seen.day > tenant.seen.day:  # what is held of another day is nothing now
            tenant.held -= Amounts(day=tenant.held.day)
        tenant.seen = seen

    def _held(self, tenant: _Tenant) -> Amounts:
        """What may be taken of what is held."""
        return NOTHING if self._lapsed else tenant.held.at_least(NOTHING)

    def _even_out(self, name: str) -> None:
        """Give back what is held beyond the spare, and tell of debts."""
        tenant = self._tenants[name]
        spare = self._spare(tenant.limits) if tenant.busy else NOTHING
        excess = (tenant.held - spare).at_least(NOTHING) + tenant.held.least(NOTHING)
        tenant.held -= excess
        self._give_back(name, excess)

    def _give_back(self, name: str, amounts: Amounts) -> None:
        if amounts:
            tenant = self._tenants[name]
            self._tell(self._given_back(name, tenant, amounts, tenant.seen.day))

    async def _given_back(self, name: str, tenant: _Tenant, amounts: Amounts, day: int) -> None:
        try:
            await self._asked(GiveBack(name, amounts, day))
        except JaxserveError as error:
            # The ledger may have taken it all the same. What was given back is gone then, and what is owed stays owed.
            _LOG.debug("nobody knows whether what tenant %s gave back has come: %s", name, error.message)
            owed = amounts.least(NOTHING)
            tenant.held += owed if day == tenant.seen.day else owed - Amounts(day=owed.day)

    async def _claim(self, claim: Claim) -> Claimed:
        try:
            reply = await self._asked(claim)
        except JaxserveError as error:
            if self._admits:
                return Claimed("none") if claim.begin == "never" else Claimed("new", claim.owner)
            raise OverloadedError(
                f"answers under ids and idempotency keys cannot be looked at now: {error.message}", retry_after=RETRY_SECONDS
            ) from error
        assert isinstance(reply, Claimed)
        return reply

    def _peek(self, ask: Peek) -> Levels | Awaitable[Levels]:
        tenant = self._tenants[ask.tenant]
        tenant.limits = ask.limits
        known = tenant.levels
        if (known.requests is None) == (ask.limits.rpm is None) and (known.tokens is None) == (ask.limits.tpm is None):
            return self._levels(tenant)
        return self._look(ask, tenant)

    async def _look(self, ask: Peek, tenant: _Tenant) -> Levels:
        try:
            reply = await self._asked(Draw(ask.tenant, ask.limits, NOTHING, NOTHING))
        except JaxserveError:
            return self._levels(tenant)
        assert isinstance(reply, Drawn)
        tenant.levels = reply.levels
        return self._levels(tenant)

    async def _asked_of_all(self, message: Watch | Share | Revoke | ListKept) -> Wanted | Revoked | Listed | Done:
        reply = await self._asked(message)
        assert isinstance(reply, Wanted | Revoked | Listed | Done)
        return reply

    async def _asked(self, message: Shared) -> SharedReply:
        reply = await self._ask(message)
        self._heard = self._clock.now()
        return reply

    async def _passed_on(self, message: Shared) -> None:
        try:
            await self._asked(message)
        except JaxserveError as error:
            _LOG.warning("the fleet's ledger was not told, and will be again: %s", error.message)
            self._untold.append(message)

    def _tell(self, telling: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(telling)
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    def _spare(self, limits: TenantLimits) -> Amounts:
        """What this ingress may hold of a tenant's limits beyond what runs."""
        part = SPARE_SHARE * self._among
        return Amounts(
            (limits.rpm or 0) // part,
            (limits.tpm or 0) // part,
            (limits.daily_tokens or 0) // (SPARE_OF_DAY * self._among),
            (limits.max_concurrent or 0) // part,
        )

    def _levels(self, tenant: _Tenant) -> Levels:
        """What the tenant has left, as far as is known here."""
        known, held = tenant.levels, tenant.held
        return Levels(_with(known.requests, held.requests), _with(known.tokens, held.tokens))

    def _name(self, owner: str) -> str:
        return f"{self._ingress}/{owner}"


def _limited(need: Amounts, limits: TenantLimits) -> Amounts:
    """Of what has no limit nothing is counted."""
    return Amounts(
        need.requests if limits.rpm is not None else 0,
        need.tokens if limits.tpm is not None else 0,
        need.day if limits.daily_tokens is not None else 0,
        need.slots if limits.max_concurrent is not None else 0,
    )


def _in_whole(refused: Refused, need: Amounts, aside: Amounts, levels: Levels) -> Refused:
    """A refusal of what was missing as one of what was asked for."""
    names = {"requests": "requests", "tokens": "tokens", "daily": "day", "concurrent": "slots"}
    name = names[refused.limit]
    asked, had = getattr(need, name), getattr(aside, name)
    return msgspec.structs.replace(refused, asked=asked, used=max(refused.used - had, 0), levels=levels)


def _with(level: Level | None, held: int) -> Level | None:
    return None if level is None else Level(level.limit, min(max(level.remaining + held, 0), level.limit), level.reset)
