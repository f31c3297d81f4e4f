"""One request on its way, however often it is sent: what may be done with it, and when it is sent again."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from jaxserve.client.budget import RetryBudget
from jaxserve.client.delivered import Delivered
from jaxserve.client.policy import RetryPolicy, asks_back

KEY, REPLAYED, GRACE = "Idempotency-Key", "Idempotency-Replayed", "Idempotency-Grace"
_CONVERSATION = "X-Conversation-Id"  # under which the server keeps the answer for whoever asks for it: not with a key as well


@dataclass(frozen=True, slots=True)
class Settings:
    """What all requests of a transport share.

    Attributes:
        library: httpx, or httpx2, which is the same under another name.
        draw: a number from 0 to 1.
    """

    library: ModuleType
    policy: RetryPolicy
    budget: RetryBudget
    draw: random.Random = field(default_factory=random.Random)


class Sending:
    """One request.

    Attributes:
        request: as it is sent: a POST with a key, unless it belongs to a conversation.
        delivered: what its reader has got of the answer.
    """

    def __init__(self, request: Any, settings: Settings) -> None:
        self._settings = settings
        library = settings.library
        self._repeatable = isinstance(request.stream, library.ByteStream)  # a file's body is read once
        self._retries = 0
        keyed = request.method == "POST" and self._repeatable and _CONVERSATION not in request.headers
        self._runs_once = keyed or (request.method in {"GET", "HEAD"} and self._repeatable)
        self.request = _copy(library, request, {KEY: request.headers.get(KEY) or uuid.uuid4().hex} if keyed else {})
        self.delivered = Delivered()

    @property
    def keyed(self) -> bool:
        return KEY in self.request.headers and self._repeatable

    def twins(self) -> tuple[Any, Any]:
        """Two requests to run beside each other. The one that is left is given up at once, so neither can be resumed."""
        first, second = (
            _copy(self._settings.library, self.request, {KEY: key, GRACE: "0"})
            for key in (self.request.headers[KEY], uuid.uuid4().hex)
        )
        return first, second

    def after_answer(self, response: Any) -> float | None:
        """Seconds after which to send it again; None if this is the answer."""
        asked = asks_back(response.status_code, response.headers)
        if asked is None:
            self._settings.budget.answered()
            return None
        return self._wait(asked) if self._repeatable else None

    def after_failure(self, error: Exception) -> float | None:
        """Seconds after which to send it again; None if the failure stands.

        What did not reach the server can always be sent again, what may have run only if it then does not run twice. Other
        timeouts than that of connecting are the caller's patience, and end with it.
        """
        library = self._settings.library
        if isinstance(error, library.ConnectError | library.ConnectTimeout):
            return self._wait(0.0) if self._repeatable else None
        return self._wait(0.0) if self._runs_once and isinstance(error, self.broken) else None

    @property
    def broken(self) -> tuple[type[Exception], ...]:
        """Failures of a connection that stood."""
        library = self._settings.library
        return library.ReadError, library.WriteError, library.CloseError, library.RemoteProtocolError

    def after_break(self) -> float | None:
        """Seconds after which to ask for the rest of the answer; the first time costs nothing, for nothing runs twice."""
        return self._wait(0.0, free=self._retries == 0)

    def resumes(self, response: Any) -> bool:
        """Whether an answer is the one that broke off. Where nothing of it was delivered yet, any is as good."""
        return response.status_code < 400 and (self.delivered.count == 0 or response.headers.get(REPLAYED) == "true")

    def take(self, piece: bytes) -> bytes:
        """What of a piece its reader has not got yet. Raises AnotherAnswerError."""
        fresh = self.delivered.take(piece)
        if fresh:
            self._retries = 0
        return fresh

    def _wait(self, asked: float, *, free: bool = False) -> float | None:
        settings = self._settings
        self._retries += 1
        seconds = settings.policy.wait(self._retries, asked, settings.draw.random())
        return seconds if seconds is not None and (free or settings.budget.take()) else None


def _copy(library: ModuleType, request: Any, headers: dict[str, str]) -> Any:
    """The request with more headers: the caller's own is left as it is, and may be sent a second time."""
    copy = library.Request(request.method, request.url, headers=request.headers, stream=request.stream)
    copy.headers.update(headers)
    copy.extensions = request.extensions
    return copy
