"""The ledger that ingresses share: hands out shares of what tenants may take, and keeps answers under keys of clients."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import msgspec

from jaxserve.clock import Clock
from jaxserve.config.keys_file import TenantLimits
from jaxserve.errors import OverloadedError
from server.gateway.account import Account, Amounts
from server.gateway.messages import (
    Claim,
    Claimed,
    Done,
    Keep,
    Levels,
    Listed,
    ListKept,
    Refused,
    Release,
    Revoke,
    Revoked,
    Share,
    Wanted,
    Watch,
)
from server.gateway.results import Results

BEAT_SECONDS = 1.0  # between two words of an ingress
LEASE_SECONDS = 10.0  # without a word from the ledger after which an ingress lets go of what it holds
STRIKE_SECONDS = 2 * LEASE_SECONDS  # without a word of an ingress after which it is given up: it let go before
ANSWER_SECONDS = 2.0  # that an answer may take
LEARN_SECONDS = 2 * (BEAT_SECONDS + ANSWER_SECONDS)  # that one which was started again listens before it hands anything out
_MICROSECONDS = 1_000_000


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """What an ingress last heard of a tenant's day: the day, and tokens charged to it."""

    day: int = 0
    spent: int = 0


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """What an ingress knows of a tenant, and how many requests at the same time it has drawn and not given back."""

    seen: Seen
    slots: int


class Draw(msgspec.Struct, frozen=True, tag=True):
    """May this be taken? Answered by Drawn, with all of `need` and what there is of `spare`, or by Refused."""

    tenant: str
    limits: TenantLimits
    need: Amounts
    spare: Amounts


class Drawn(msgspec.Struct, frozen=True, tag=True):
    amounts: Amounts
    levels: Levels
    seen: Seen


class GiveBack(msgspec.Struct, frozen=True, tag=True):
    """What an ingress does not need; what is negative it took beyond what it had drawn. Answered by Done.

    Attributes:
        day: that the tokens of a day are of.
    """

    tenant: str
    amounts: Amounts
    day: int


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The ingress is there. Answered by News.

    Attributes:
        addresses: where it serves.
        tenants: all that it knows.
    """

    addresses: tuple[str, str]
    tenants: dict[str, Standing]


class News(msgspec.Struct, frozen=True, tag=True):
    """The day of each tenant that was named, whoever it was charged by: every ingress is to know it if the ledger forgets it."""

    seen: dict[str, Seen]


class OwnersGone(msgspec.Struct, frozen=True, tag=True):
    """Front ends of the ingress that are gone: what they claimed is free. Answered by Done."""

    owners: list[str]


Shared = Draw | GiveBack | Beat | OwnersGone | Claim | Keep | Release | Revoke | ListKept | Watch | Share
SharedReply = Drawn | Refused | Claimed | Revoked | Listed | News | Wanted | Done


@dataclass(slots=True)
class _Ingress:
    heard: float
    addresses: tuple[str, str] | None = None
    slots: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))  # tenant -> of requests at the same time
    drawn: set[str] = field(default_factory=set)  # tenants, since its last word
    owners: set[str] = field(default_factory=set)


class SharedLedger:
    """One message at a time, on one clock. It keeps nothing on a disk: one that was started again learns the tokens of the day
    from what ingresses last heard, and its buckets are empty, so that nobody gets anything twice.

    Args:
        clock: tells the time; it must be monotonic.
        unix_time: of the machine now, seconds.
        again: whether there was one before it.
    """

    def __init__(self, clock: Clock, unix_time: float, *, again: bool) -> None:
        self._clock = clock
        self._epoch = int(unix_time * _MICROSECONDS) - self._now()
        self._again = again
        self._opened = clock.now()
        self._results = Results()
        self._accounts: defaultdict[str, Account] = defaultdict(Account)
        self._ingresses: dict[str, _Ingress] = {}

    def handle(self, name: str, message: Shared) -> SharedReply:
        """Answer an ingress. Raises OverloadedError while it learns what was."""
        ingress = self._ingresses.setdefault(name, _Ingress(self._clock.now()))
        ingress.heard = self._clock.now()
        self._strike_off()
        match message:
            case Draw():
                return self._draw(ingress, message)
            case GiveBack():
                self._give_back(ingress, message)
            case Beat():
                return self._beat(ingress, message)
            case OwnersGone():
                for owner in message.owners:
                    self._results.forget(owner)
            case Claim():
                ingress.owners.add(message.owner)
                return self._results.claim(message, self._clock.now())
            case Revoke():
                return Revoked(self._results.revoke((message.scope, message.key), self._clock.now()))
            case ListKept():
                return self._results.listed(message, self._clock.now())
            case Watch():
                return self._results.wanted(message.owner, self._clock.now())
            case Share():
                self._results.share(message)
            case Keep():
                self._results.keep(message, self._clock.now())
            case Release():
                self._results.release(message.token, (message.scope, message.key))
        return Done()

    def addresses(self) -> dict[str, tuple[str, str]]:
        """Where ingresses serve, by their names."""
        self._strike_off()
        return {name: one.addresses for name, one in sorted(self._ingresses.items()) if one.addresses is not None}

    def _draw(self, ingress: _Ingress, ask: Draw) -> Drawn | Refused:
        if self._learns:
            raise OverloadedError("the fleet's ledger has just been started again", retry_after=LEARN_SECONDS)
        ingress.drawn.add(ask.tenant)
        now, account = self._now(), self._accounts[ask.tenant]
        account.renew(ask.limits, self._epoch, now, empty=self._again)
        refused = account.refused(ask.limits, ask.need, self._epoch, now) if ask.need else None
        if refused is not None:
            return refused
        account.take(ask.need, now)
        spare = ask.spare.least(account.left(ask.limits, now))
        account.take(spare, now)
        given = ask.need + spare
        ingress.slots[ask.tenant] += given.slots
        return Drawn(given, account.levels(now), Seen(account.day, account.spent))

    def _give_back(self, ingress: _Ingress, told: GiveBack) -> None:
        account, amounts = self._accounts[told.tenant], told.amounts
        slots = min(amounts.slots, ingress.slots[told.tenant])  # one that was struck off holds none
        ingress.slots[told.tenant] -= slots
        day = amounts.day if told.day == account.day else 0
        account.take(Amounts() - Amounts(amounts.requests, amounts.tokens, day, slots), self._now())

    def _beat(self, ingress: _Ingress, told: Beat) -> News:
        first = ingress.addresses is None
        ingress.addresses = told.addresses
        for tenant, standing in told.tenants.items():
            account = self._accounts[tenant]
            if tenant not in ingress.drawn:  # else what it had drawn may not have been there when it said this
                account.running += standing.slots - ingress.slots[tenant]
                ingress.slots[tenant] = standing.slots
            if self._again and (first or self._learns):
                self._learn(account, standing.seen)
        ingress.drawn.clear()
        accounts = {tenant: self._accounts[tenant] for tenant in told.tenants}
        return News({tenant: Seen(account.day, account.spent) for tenant, account in accounts.items()})

    @property
    def _learns(self) -> bool:
        return self._again and self._clock.now() - self._opened < LEARN_SECONDS

    def _learn(self, account: Account, seen: Seen) -> None:
        if seen.day > account.day:
            account.day, account.spent = seen.day, seen.spent
        elif seen.day == account.day:
            account.spent = max(account.spent, seen.spent)

    def _strike_off(self) -> None:
        before = self._clock.now() - STRIKE_SECONDS
        for name in [name for name, one in self._ingresses.items() if one.heard < before]:
            gone = self._ingresses.pop(name)
            for tenant, slots in gone.slots.items():
                self._accounts[tenant].running -= slots
            for owner in gone.owners:
                self._results.forget(owner)

    def _now(self) -> int:
        return int(self._clock.now() * _MICROSECONDS)
