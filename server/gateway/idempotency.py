"""Requests with an idempotency key: the first with a key runs, those that repeat it get its answer."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing

import msgspec

from jaxserve.errors import ConflictError, IdempotencyError, InternalError, InvalidRequestError
from server.gateway.ledger import UsageLedger
from server.gateway.messages import Claim, Claimed, Keep, Release
from server.gateway.recording import Recording
from server.gateway.results import MAX_RESULT_BYTES, Name
from server.gateway.sharing import POLL_SECONDS, Sharing

MAX_KEY_CHARS = 255
MAX_LEFT_BYTES = 64 * 2**20  # of an account's answers that go on though nobody reads them
MAX_LEFT = 1024

Add = Callable[[bytes], Awaitable[None]]
Make = Callable[[Add], Awaitable[bool]]
"""Makes an answer: gives its pieces to what it is called with, and returns whether the answer is worth keeping."""


class IdempotencyCache:
    """Answers under idempotency keys, made by this front end or by another.

    Args:
        grace: seconds that an answer goes on after its last reader has left, unless that asked for less.
    """

    def __init__(self, ledger: UsageLedger, owner: str, grace: float = 0.0) -> None:
        self._ledger = ledger
        self._owner = owner
        self._grace = grace
        self._made_here: dict[Name, Recording] = {}
        self._left: dict[str, list[Recording]] = {}  # by account, those that left first before the others
        self._sharing = Sharing(ledger, owner)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[bytes])

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
        name = (scope, key)
        have, run = 0, ""  # pieces that came from another front end, and of which run they are
        while True:
            claim = Claim(self._owner, uuid.uuid4().hex, account, scope, key, fingerprint, have)
            claimed = await self._claim(claim)
            if claimed.state == "other":
                raise IdempotencyError(f"the idempotency key {key!r} was used before with another request")
            if claimed.state == "new" and have:
                self._ledger.tell(Release(claim.token, *name))
            if have and claimed.run != run:
                raise InternalError("the answer under the idempotency key broke off")
            recording, repeated = self._made_here.get(name), claimed.state != "new"
            if claimed.state == "new" and recording is not None and recording.kept and recording.fingerprint == fingerprint:
                self._ledger.tell(Release(claim.token, *name))  # the ledger has forgotten whose it is: it runs here, and once
                repeated = True
            elif claimed.state == "new":
                recording = self._begin(claim, make)
            if claimed.state == "too_long" or (recording is not None and recording.too_long):
                raise ConflictError(
                    f"the answer under the idempotency key {key!r} is longer than {MAX_RESULT_BYTES} bytes: not kept"
                )
            if recording is not None and recording.kept and claimed.state != "done":
                async with aclosing(self._read(account, recording, grace)) as pieces:
                    async for piece in pieces:
                        yield repeated, piece
                return
            done = claimed.state == "done"
            for piece in self._decoder.decode(claimed.result)[have:] if done else claimed.pieces:
                yield True, piece
            if done:
                return
            have, run = have + len(claimed.pieces), claimed.run
            await asyncio.sleep(POLL_SECONDS)

    async def _read(self, account: str, recording: Recording, grace: float | None) -> AsyncGenerator[bytes, None]:
        try:
            seconds = self._grace if grace is None else min(grace, self._grace)
            async with aclosing(recording.read(seconds)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            if recording.left:
                self._bound(account, recording)

    def _bound(self, account: str, left: Recording) -> None:
        """Give up those of an account that were left first, where there are too many."""
        staying = [one for one in self._left.get(account, []) if one.left and one is not left] + [left]
        while len(staying) > MAX_LEFT or sum(one.held_bytes for one in staying) > MAX_LEFT_BYTES:
            staying.pop(0).give_up()
        self._left[account] = staying

    def _unbound(self, account: str, ended: Recording) -> None:
        staying = [one for one in self._left.pop(account, []) if one is not ended]
        if staying:
            self._left[account] = staying

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
        recording = self._made_here[name] = Recording(claim.fingerprint)
        self._sharing.begin(claim.token, name, recording)
        worth = False

        async def making() -> None:
            nonlocal worth
            worth = await make(recording.add)

        def on_made(task: asyncio.Task[None]) -> None:
            if self._made_here.get(name) is recording:
                del self._made_here[name]
            self._sharing.end(claim.token)
            self._unbound(claim.account, recording)
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
