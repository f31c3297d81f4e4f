"""What clients are told of their limits: errors, and the headers that OpenAI's clients read."""

from __future__ import annotations

from jaxserve.errors import BudgetError, InvalidRequestError, JaxserveError, RateLimitError
from server.gateway.messages import Level, Levels, Refused

BUSY_SECONDS = 1.0  # after which to try again while all requests of a tenant run: nobody knows when one ends
_SECOND = 1_000_000


def refusal(refused: Refused, tenant: str) -> JaxserveError:
    """The error for a request that stands against a limit."""
    if refused.limit == "size":
        return InvalidRequestError(
            f"the request may take {refused.asked} tokens (its prompt and max_tokens for each output), more than the "
            f"{refused.allowed} that tenant {tenant!r} ever has: ask for less with max_tokens",
            param="max_tokens",
        )
    if refused.wait is None:
        return RateLimitError(f"tenant {tenant!r} has {refused.used} requests running, its limit", retry_after=BUSY_SECONDS)
    seconds = refused.wait / _SECOND
    numbers = f"limit {refused.allowed}, used {refused.used}, requested {refused.asked}"
    if refused.limit == "daily":
        return BudgetError(
            f"tenant {tenant!r} has spent its tokens of the day: {numbers}. The next day (UTC) begins in {seconds:.3f}s.",
            retry_after=seconds,
        )
    return RateLimitError(
        f"rate limit of tenant {tenant!r} on {refused.limit} a minute: {numbers}. Please try again in {seconds:.3f}s.",
        retry_after=seconds,
    )


def rate_limit_headers(levels: Levels | None) -> dict[str, str]:
    """x-ratelimit-* of a tenant with limits. A reset is when all of the limit is there again."""
    if levels is None:
        return {}
    return {**_headers("requests", levels.requests), **_headers("tokens", levels.tokens)}


def _headers(what: str, level: Level | None) -> dict[str, str]:
    if level is None:
        return {}
    return {
        f"x-ratelimit-limit-{what}": str(level.limit),
        f"x-ratelimit-remaining-{what}": str(level.remaining),
        f"x-ratelimit-reset-{what}": duration(level.reset),
    }


def duration(microseconds: int) -> str:
    """A time as OpenAI writes it, never too short: 6m0s, 1.204s, 20ms."""
    milliseconds = -(-microseconds // 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{seconds}" if minutes else seconds
