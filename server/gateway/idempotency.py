"""Requests with an idempotency key: the first with a key runs, those that repeat it get its answer."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing

import msgspec

from jaxserve.errors import IdempotencyError, InvalidRequestError
from server.gateway.ledger import UsageLedger
from server.gateway.messages import Claim, Claimed, Keep, Release
from server.gateway.recording import Recording

MAX_KEY_CHARS = 255
_POLL_SECONDS = 0.1  # how often to ask for an answer that another front end makes

Add = Callable[[bytes], Awaitable[None]]
Make = Callable[[Add], Awaitable[bool]]
"""Makes an answer: gives its pieces to what it is called with, and returns whether the answer is worth keeping."""


class IdempotencyCache:
    """Answers under idempotency keys, made by this front end or by another."""

    def __init__(self, ledger: UsageLedger, owner: str) -> None:
        self._ledger = ledger
        self._owner = owner
        self._made_here: dict[tuple[str, str], Recording] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[bytes])

    async def read(
        self, account: str, scope: str, key: str, fingerprint: bytes, make: Make
    ) -> AsyncGenerator[tuple[bool, bytes], None]:
        """The pieces of the answer, each with whether it is a repeated one.

        Args:
            account: whose share of what is kept the answer takes from.
            scope: the tenant, whose keys are its own.
            fingerprint: digest of the request.

        Raises what `make` raises, InvalidRequestError for a key that is none, and IdempotencyError for one that was used with
        another request.
        """
        _check_key(key)
        name = (scope, key)
        while True:
            claim = Claim(self._owner, uuid.uuid4().hex, account, scope, key, fingerprint)
            claimed = await self._claim(claim)
            if claimed.state == "other":
                raise IdempotencyError(f"the idempotency key {key!r} was used before with another request")
            if claimed.state == "done":
                for piece in self._decoder.decode(claimed.result):
                    yield True, piece
                return
            recording = self._made_here.get(name)
            if claimed.state == "new":
                recording = self._begin(claim, make)
            if recording is not None and recording.kept:
                async with aclosing(recording.read()) as pieces:
                    async for piece in pieces:
                        yield claimed.state == "running", piece
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _claim(self, claim: Claim) -> Claimed:
        try:
            claimed = await self._ledger.ask(claim)
        except BaseException:  # it may be claimed all the same
            self._ledger.tell(Release(claim.token, claim.scope, claim.key))
            raise
        assert isinstance(claimed, Claimed)
        return claimed

    def _begin(self, claim: Claim, make: Make) -> Recording:
        name = (claim.scope, claim.key)
        recording = self._made_here[name] = Recording()
        worth = False

        async def making() -> None:
            nonlocal worth
            worth = await make(recording.add)

        def on_made(task: asyncio.Task[None]) -> None:
            del self._made_here[name]
            whole = recording.whole()
            if worth and whole is not None:
                self._ledger.tell(Keep(claim.token, *name, self._encoder.encode(whole)))
            else:
                self._ledger.tell(Release(claim.token, *name))

        recording.start(making()).add_done_callback(on_made)
        return recording


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
