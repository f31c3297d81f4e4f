"""One tenant's account: what was taken of each of its limits, and what stands against more."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from jaxserve.config.keys_file import TenantLimits
from server.gateway.buckets import MINUTE, Bucket
from server.gateway.messages import Level, Levels, Limit, Refused, Reserve

DAY = 1440 * MINUTE
FIRST_GUESS = 256.0  # output tokens of a request that does not say how many it wants, before any was seen
LEARNING = 1 / 16


class Amounts(msgspec.Struct, frozen=True, array_like=True):
    """Of each limit: requests and tokens a minute, tokens of the day, requests at the same time."""

    requests: int = 0
    tokens: int = 0
    day: int = 0
    slots: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(*(one + two for one, two in zip(self._parts, other._parts, strict=True)))

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(*(one - two for one, two in zip(self._parts, other._parts, strict=True)))

    def least(self, other: Amounts) -> Amounts:
        """The smaller of each."""
        return Amounts(*map(min, self._parts, other._parts))

    def at_least(self, other: Amounts) -> Amounts:
        """The greater of each."""
        return Amounts(*map(max, self._parts, other._parts))

    def __bool__(self) -> bool:
        return any(self._parts)

    @property
    def _parts(self) -> tuple[int, int, int, int]:
        return self.requests, self.tokens, self.day, self.slots


NOTHING = Amounts()


def need_of(ask: Reserve, tokens: int) -> Amounts:
    """What a request takes whose estimate is so many tokens: in the background of the day's alone."""
    return Amounts(0, 0, tokens, 0) if ask.background else Amounts(1, tokens, tokens, 1)


@dataclass(slots=True)
class Account:
    """Times are microseconds of a monotonic clock.

    Attributes:
        requests, tokens: buckets, None without a limit.
        running: requests at the same time.
        day, spent: a day in UTC, and tokens charged to it.
    """

    requests: Bucket | None = None
    tokens: Bucket | None = None
    running: int = 0
    day: int = 0
    spent: int = 0

    def renew(self, limits: TenantLimits, epoch: int, now: int, *, empty: bool = False) -> None:
        """Take in what the limits are now, and a new day; `empty` is whether a bucket that is new holds nothing."""
        self.requests = _bucket(self.requests, limits.rpm, now, empty=empty)
        self.tokens = _bucket(self.tokens, limits.tpm, now, empty=empty)
        day = (epoch + now) // DAY
        if day > self.day:
            self.day, self.spent = day, 0

    def refused(self, limits: TenantLimits, need: Amounts, epoch: int, now: int) -> Refused | None:
        """What stands against taking so much now; none of it is more than its limit."""

        def refused(limit: Limit, wait: int | None, allowed: int, used: int, asked: int) -> Refused:
            return Refused(limit, wait, allowed, used, asked, self.levels(now))

        if limits.daily_tokens is not None and self.spent + need.day > limits.daily_tokens:
            return refused("daily", DAY - (epoch + now) % DAY, limits.daily_tokens, self.spent, need.day)
        waits: list[tuple[int, Limit, Bucket, int]] = []
        if self.requests is not None and need.requests:
            waits.append((self.requests.wait(need.requests, now), "requests", self.requests, need.requests))
        if self.tokens is not None and (need.tokens or need.requests):
            waits.append((self.tokens.wait(need.tokens, now), "tokens", self.tokens, need.tokens))
        if waits:
            wait, limit, bucket, asked = max(waits, key=lambda one: one[0])
            if wait:
                return refused(limit, wait, bucket.limit, bucket.limit - bucket.remaining(now), asked)
        if limits.max_concurrent is not None and need.slots and self.running + need.slots > limits.max_concurrent:
            return refused("concurrent", None, limits.max_concurrent, self.running, need.slots)
        return None

    def left(self, limits: TenantLimits, now: int) -> Amounts:
        """What could be taken now; nothing of what has no limit."""
        return Amounts(
            0 if self.requests is None else self.requests.remaining(now),
            0 if self.tokens is None else self.tokens.remaining(now),
            0 if limits.daily_tokens is None else max(limits.daily_tokens - self.spent, 0),
            0 if limits.max_concurrent is None else max(limits.max_concurrent - self.running, 0),
        )

    def take(self, amounts: Amounts, now: int) -> None:
        """Take, or give back what is negative."""
        for bucket, units in ((self.requests, amounts.requests), (self.tokens, amounts.tokens)):
            if bucket is None:
                continue
            if units < 0:
                bucket.give_back(-units, now)
            else:
                bucket.take(units, now)
        self.running += amounts.slots
        self.spent += amounts.day

    def levels(self, now: int) -> Levels:
        return Levels(_level(self.requests, now), _level(self.tokens, now))


def estimate_of(ask: Reserve, output_mean: float) -> int:
    """Tokens that a request may take: what it asks for, or what outputs usually are, if the tenant has that much at all."""
    if ask.max_tokens is not None:
        return ask.prompt_tokens + ask.sequences * ask.max_tokens
    usual = ask.prompt_tokens + ask.sequences * math.ceil(output_mean)
    least = ask.prompt_tokens + ask.sequences
    return max(least, min([usual, *_token_limits(ask)]))


def too_large(ask: Reserve, tokens: int, levels: Levels) -> Refused | None:
    """The refusal of a request that no limit could ever hold."""
    for most in _token_limits(ask):
        if tokens > most:
            return Refused("size", None, most, 0, tokens, levels)
    return None


def learned(output_mean: float, output_tokens: int, finished: int) -> float:
    """The mean of outputs after some that came to their own end."""
    return output_mean + (output_tokens / finished - output_mean) * LEARNING if finished else output_mean


def _token_limits(ask: Reserve) -> list[int]:
    """Limits that no request can exceed."""
    limits = (None if ask.background else ask.limits.tpm, ask.limits.daily_tokens)
    return [limit for limit in limits if limit is not None]


def _bucket(bucket: Bucket | None, limit: int | None, now: int, *, empty: bool) -> Bucket | None:
    if limit is None:
        return None
    if bucket is None:
        bucket = Bucket(limit, now)
        if empty:
            bucket.take(limit, now)
        return bucket
    bucket.set_limit(limit, now)
    return bucket


def _level(bucket: Bucket | None, now: int) -> Level | None:
    if bucket is None:
        return None
    return Level(bucket.limit, bucket.remaining(now), bucket.wait(bucket.limit, now))
