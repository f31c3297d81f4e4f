"""What tenants may take and have taken: charged by estimate when a request starts, by what it took when it is over."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jaxserve.config.keys_file import TenantLimits
from server.gateway.buckets import MINUTE, Bucket
from server.gateway.messages import Granted, Level, Levels, Limit, Refused, Reserve, Settle

DAY = 1440 * MINUTE
FIRST_GUESS = 256.0  # output tokens of a request that does not say how many it wants, before any was seen
LEARNING = 1 / 16


@dataclass(slots=True)
class _Account:
    """One tenant's.

    Attributes:
        requests, tokens: buckets, None without a limit.
        running: reserved requests.
        day, spent: a day in UTC, and tokens charged to it.
        output_mean: tokens of one output, learned.
    """

    requests: Bucket | None = None
    tokens: Bucket | None = None
    running: int = 0
    day: int = 0
    spent: int = 0
    output_mean: float = FIRST_GUESS


@dataclass(frozen=True, slots=True)
class _Reservation:
    """What was charged, to whom, on which day, and whether to the day alone."""

    owner: str
    tenant: str
    tokens: int
    day: int
    background: bool


@dataclass(slots=True)
class Accounts:
    """Accounts of all tenants. Times are microseconds of a monotonic clock.

    Args:
        epoch: Unix time, microseconds, at time 0. Days are counted from it by the monotonic clock: setting the machine's clock
            refills nothing.
    """

    epoch: int
    _accounts: dict[str, _Account] = field(default_factory=dict)
    _reservations: dict[str, _Reservation] = field(default_factory=dict)

    def reserve(self, ask: Reserve, now: int) -> Granted | Refused:
        """Charge a request by estimate, or say what stands against it and charge nothing."""
        account = self._account(ask.tenant, ask.limits, now)
        tokens = _estimate(ask, account.output_mean)
        refused = self._refused(account, ask, tokens, now)
        if refused is not None:
            return refused
        if not ask.background:
            if account.requests is not None:
                account.requests.take(1, now)
            if account.tokens is not None:
                account.tokens.take(tokens, now)
            account.running += 1
        account.spent += tokens
        self._reservations[ask.reservation] = _Reservation(ask.owner, ask.tenant, tokens, account.day, ask.background)
        return Granted(_levels(account, now))

    def settle(self, told: Settle, now: int) -> None:
        """Charge what a request took instead of its estimate; the second time for a reservation does nothing."""
        reservation = self._reservations.pop(told.reservation, None)
        if reservation is None:
            return
        account = self._accounts[reservation.tenant]
        if told.finished:
            account.output_mean += (told.output_tokens / told.finished - account.output_mean) * LEARNING
        self._close(account, reservation, told.prompt_tokens + told.output_tokens, now)

    def peek(self, tenant: str, limits: TenantLimits, now: int) -> Levels:
        return _levels(self._account(tenant, limits, now), now)

    def forget(self, owner: str, now: int) -> None:
        """A front end is gone. What its requests took is not known: their estimates stay charged."""
        for name in [name for name, one in self._reservations.items() if one.owner == owner]:
            reservation = self._reservations.pop(name)
            self._close(self._accounts[reservation.tenant], reservation, reservation.tokens, now)

    def _close(self, account: _Account, reservation: _Reservation, tokens: int, now: int) -> None:
        difference = tokens - reservation.tokens
        if not reservation.background:
            if account.tokens is not None:
                if difference < 0:
                    account.tokens.give_back(-difference, now)
                else:
                    account.tokens.take(difference, now)
            account.running -= 1
        if account.day == reservation.day:
            account.spent += difference

    def _account(self, tenant: str, limits: TenantLimits, now: int) -> _Account:
        account = self._accounts.setdefault(tenant, _Account())
        account.requests = _bucket(account.requests, limits.rpm, now)
        account.tokens = _bucket(account.tokens, limits.tpm, now)
        day = (self.epoch + now) // DAY
        if day > account.day:
            account.day, account.spent = day, 0
        return account

    def _refused(self, account: _Account, ask: Reserve, tokens: int, now: int) -> Refused | None:
        limits = ask.limits

        def refused(limit: Limit, wait: int | None, allowed: int, used: int, asked: int) -> Refused:
            return Refused(limit, wait, allowed, used, asked, _levels(account, now))

        for most in _token_limits(ask):
            if tokens > most:
                return refused("size", None, most, 0, tokens)
        if limits.daily_tokens is not None and account.spent + tokens > limits.daily_tokens:
            midnight = DAY - (self.epoch + now) % DAY
            return refused("daily", midnight, limits.daily_tokens, account.spent, tokens)
        if ask.background:
            return None
        waits: list[tuple[int, Limit, Bucket, int]] = []
        if account.requests is not None:
            waits.append((account.requests.wait(1, now), "requests", account.requests, 1))
        if account.tokens is not None:
            waits.append((account.tokens.wait(tokens, now), "tokens", account.tokens, tokens))
        if waits:
            wait, limit, bucket, asked = max(waits, key=lambda one: one[0])
            if wait:
                return refused(limit, wait, bucket.limit, bucket.limit - bucket.remaining(now), asked)
        if limits.max_concurrent is not None and account.running >= limits.max_concurrent:
            return refused("concurrent", None, limits.max_concurrent, account.running, 1)
        return None


def _estimate(ask: Reserve, output_mean: float) -> int:
    """Tokens that a request may take: what it asks for, or what outputs usually are, if the tenant has that much at all."""
    if ask.max_tokens is not None:
        return ask.prompt_tokens + ask.sequences * ask.max_tokens
    usual = ask.prompt_tokens + ask.sequences * math.ceil(output_mean)
    least = ask.prompt_tokens + ask.sequences
    return max(least, min([usual, *_token_limits(ask)]))


def _token_limits(ask: Reserve) -> list[int]:
    """Limits that no request can exceed."""
    limits = (None if ask.background else ask.limits.tpm, ask.limits.daily_tokens)
    return [limit for limit in limits if limit is not None]


def _bucket(bucket: Bucket | None, limit: int | None, now: int) -> Bucket | None:
    if limit is None:
        return None
    if bucket is None:
        return Bucket(limit, now)
    bucket.set_limit(limit, now)
    return bucket


def _levels(account: _Account, now: int) -> Levels:
    return Levels(_level(account.requests, now), _level(account.tokens, now))


def _level(bucket: Bucket | None, now: int) -> Level | None:
    if bucket is None:
        return None
    return Level(bucket.limit, bucket.remaining(now), bucket.wait(bucket.limit, now))
