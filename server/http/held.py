"""Bodies of requests that this front end holds in memory: none where none is taken, and of all together not too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import Receive

from jaxserve.config.server import ServerConfig
from jaxserve.errors import CancelledRequestError, OverloadedError, RequestTooLargeError

_SHARES = 4  # of all that is held, one account takes one at most
_RETRY_SECONDS = 1.0  # bodies are held while they are answered: nobody knows when one is done


class Held:
    """One request's body."""

    def __init__(self, bodies: Bodies, account: str, *, has_weights: bool) -> None:
        self._bodies = bodies
        self._account = account
        self._has_weights = has_weights
        self._bytes = 0

    async def read(self, receive: Receive, headers: Headers) -> bytes:
        """The whole body. A length that is announced is looked at before anything is read.

        Raises RequestTooLargeError for a body that is too long by itself, as soon as that is known, OverloadedError for one
        that is too much beside those that are held, and CancelledRequestError if the client leaves.
        """
        announced = headers.get("content-length", "0")
        self._grow(int(announced) if announced.isdecimal() else 0)
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise CancelledRequestError("the client went away")
            part = message.get("body", b"")
            size += len(part)
            self._grow(size)
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    def release(self) -> None:
        self._bodies.give_back(self._account, self._bytes)
        self._bytes = 0

    def _grow(self, size: int) -> None:
        if size > self._bytes:
            self._bodies.take(self._account, size, size - self._bytes, has_weights=self._has_weights)
            self._bytes = size


class Bodies:
    """All that is held.

    An account has a quarter of it at most, or one body, so that others find room; where there are no API keys all clients are
    one account, which may have everything.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._longest = config.max_body_bytes
        self._most = config.max_bodies_mib * 2**20
        self._longest_weights = max(self._longest, min(self._most, config.max_weights_mib * 2**20))
        self._share = self._most if config.keys is None else max(self._most // _SHARES, self._longest)
        self._of_account: Counter[str] = Counter()

    @contextmanager
    def hold(self, account: str, *, has_weights: bool = False) -> Iterator[Held]:
        """The body of an account's request, held until the context ends; one that has weights may be longer than others."""
        held = Held(self, account, has_weights=has_weights)
        try:
            yield held
        finally:
            held.release()

    def take(self, account: str, size: int, more: int, *, has_weights: bool = False) -> None:
        """Hold `more` bytes of a body that has `size` then. Raises RequestTooLargeError and OverloadedError."""
        longest, flag = (self._longest_weights, "--max-weights-mib") if has_weights else (self._longest, "--max-body-bytes")
        if size > longest:
            raise RequestTooLargeError(f"the body is longer than the {longest} bytes that this server reads ({flag})")
        own, total = self._of_account[account], self._of_account.total()
        share = max(self._share, longest)
        if own + more > share:
            raise self._full(f"{own} bytes of request bodies are being answered for this client's tenant", more, share)
        if total + more > self._most:
            raise self._full(f"{total} bytes of request bodies are being answered", more, self._most)
        self._of_account[account] += more

    def give_back(self, account: str, size: int) -> None:
        self._of_account[account] -= size
        if not self._of_account[account]:
            del self._of_account[account]

    def _full(self, held: str, more: int, most: int) -> OverloadedError:
        return OverloadedError(
            f"{held}, and {more} more are above the {most} that fit (--max-bodies-mib)", retry_after=_RETRY_SECONDS
        )


def check_without_body(method: str, path: str, headers: Headers) -> None:
    """Raise RequestTooLargeError if there is a body, which is not read."""
    name = "Transfer-Encoding" if "transfer-encoding" in headers else "Content-Length"
    value = headers.get(name, "0")
    if value.strip("0"):
        raise RequestTooLargeError(f"{method} {path} takes no body, got {name}: {value}", param=name)
