"""Requests with an idempotency key: the first with a key runs, those that repeat it get its answer."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from jaxserve.errors import InvalidRequestError
from server.gateway.recordings import Make, Recordings, Wish

MAX_KEY_CHARS = 255


class IdempotencyCache:
    """Answers under idempotency keys, made by this front end or by another.

    Args:
        grace: seconds that an answer goes on after its last reader has left, unless that asked for less.
    """

    def __init__(self, recordings: Recordings, grace: float = 0.0) -> None:
        self._recordings = recordings
        self._grace = grace

    async def read(
        self, account: str, scope: str, key: str, fingerprint: bytes, make: Make, grace: float | None = None
    ) -> AsyncGenerator[tuple[bool, bytes], None]:
        """The pieces of the answer, each with whether it is a repeated one.

        Args:
            account: whose share of what is kept the answer takes from.
            scope: the tenant, whose keys are its own.
            fingerprint: digest of the request.
            grace: seconds that it goes on at most if this reader was the last and leaves.

        Raises what `make` raises, InvalidRequestError for a key that is none, IdempotencyError for one that was used with
        another request, and ConflictError for one whose answer is too long to be kept and still comes.
        """
        _check_key(key)
        wish = Wish(account, scope, key, f"the answer under the idempotency key {key!r}", "once", fingerprint)
        seconds = self._grace if grace is None else min(grace, self._grace)
        async with aclosing(self._recordings.read(wish, make, seconds)) as pieces:
            async for piece in pieces:
                yield piece


def fingerprint(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _check_key(key: str) -> None:
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise InvalidRequestError(
            f"an idempotency key has 1 to {MAX_KEY_CHARS} printable ASCII characters", param="Idempotency-Key"
        )
