"""When a request is sent again, and after how long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from jaxserve.client.checks import finite

# Too many, bad gateway, unavailable, gateway's timeout, Anthropic's overloaded.
_COME_BACK = frozenset({429, 502, 503, 504, 529})
_MOST_DOUBLINGS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When requests are sent again.

    Attributes:
        retries: times at most; for a stream that goes on, times without a new byte.
        first_wait: seconds, the longest wait before the first time, doubled with each. A wait is anything from none to it ("full
            jitter"), beyond what the server asks for.
        longest_wait: seconds; a server that asks for more is not asked again, and its refusal is the answer.
        hedge_after: seconds without the head of an answer after which a request is sent a second time, to run twice; the first
            answer is taken, and the other run ends. None for never. It adds load where there is too much of it: for few requests
            only. Of asynchronous clients alone: a thread that waits for an answer cannot be called back.
    """

    retries: int = 5
    first_wait: float = 0.5
    longest_wait: float = 60.0
    hedge_after: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise ValueError(f"retries must be a whole number, at least 0, got {self.retries!r}")
        finite("first_wait", self.first_wait, at_least=0.0)
        finite("longest_wait", self.longest_wait, at_least=0.0)
        if self.hedge_after is not None:
            finite("hedge_after", self.hedge_after, at_least=0.0)

    def wait(self, retry: int, asked: float, draw: float) -> float | None:
        """Seconds before a retry; None if there is none.

        Args:
            retry: which, from 1.
            asked: seconds that the server asks for.
            draw: from 0 to 1, drawn anew each time.
        """
        if retry > self.retries or asked > self.longest_wait:
            return None
        doublings = min(retry - 1, _MOST_DOUBLINGS)
        return asked + draw * min(self.first_wait * 2.0**doublings, self.longest_wait)


def asks_back(status: int, headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds after which an answer asks for the request again, 0 if it does not say; None for one that stands.

    A server that says `x-should-retry` (OpenAI's, Anthropic's and ours do) is taken at its word.
    """
    word = headers.get("x-should-retry")
    if status < 400 or word == "false":
        return None
    asked = _retry_after(headers, now)
    if word == "true" or status in _COME_BACK or (asked is not None and (status in {408, 409} or status >= 500)):
        return asked or 0.0
    return None


def _retry_after(headers: Mapping[str, str], now: datetime | None) -> float | None:
    """What the headers ask for; None where they say nothing that can be read."""
    milliseconds = _seconds(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000.0
    text = headers.get("retry-after", "")
    seconds = _seconds(text)
    if seconds is not None or not text:
        return seconds
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    # A date without a zone is in UTC: HTTP knows no other.
    date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max((date - (now or datetime.now(UTC))).total_seconds(), 0.0)


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0.0 else None
