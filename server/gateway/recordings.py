"""Answers that are recorded as they are made: who asks for one by its name reads it here, from another front end, or later."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from jaxserve.errors import ConflictError, IdempotencyError, InternalError, InvalidRequestError, NotFoundError
from server.gateway.ledger import UsageLedger
from server.gateway.messages import Begin, Claim, Claimed, Entry, Keep, Listed, ListKept, Release, Revoke, Revoked
from server.gateway.recording import Recording, ended, event_number
from server.gateway.results import MAX_RESULT_BYTES, Name
from server.gateway.sharing import POLL_SECONDS, Sharing

MAX_LEFT_BYTES = 64 * 2**20  # of an account's answers that go on though nobody reads them
MAX_LEFT = 1024

Add = Callable[[bytes], Awaitable[None]]
Make = Callable[[Add], Awaitable[bool]]
"""Makes an answer: gives its pieces to what it is called with, and returns whether the answer is worth keeping."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The answer that somebody wants.

    Attributes:
        account: whose share of what is kept it takes from.
        scope: the tenant, whose keys are its own.
        fingerprint: digest of the request.
        what: the answer, for errors.
        skip: pieces after the first one that are not wanted.
    """

    account: str
    scope: str
    key: str
    what: str
    begin: Begin
    fingerprint: bytes = b""
    skip: int = 0

    @property
    def name(self) -> Name:
        return self.scope, self.key


class Recordings:
    """Recorded answers of one front end, and through the ledger those of others."""

    def __init__(self, ledger: UsageLedger, owner: str) -> None:
        self._ledger = ledger
        self._owner = owner
        self._made_here: dict[Name, Recording] = {}
        self._left: dict[str, list[Recording]] = {}  # by account, those that left first before the others
        self._sharing = Sharing(ledger, owner)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[bytes])

    async def read(self, wish: Wish, make: Make | None, grace: float) -> AsyncGenerator[tuple[bool, bytes], None]:
        """The pieces of the answer, each with whether it was made for another request.

        Args:
            make: makes it, where that is to be done.
            grace: seconds that it goes on if this reader was the last and leaves.

        Raises what `make` raises, IdempotencyError for a key that was used with another request, NotFoundError for an answer
        that is not there and not to be made, ConflictError for one that is too long to be kept, or was ended, and
        InvalidRequestError for one that has less than is to be skipped.
        """
        have, run = 0, ""  # pieces that came from another front end, and of which run they are
        while True:
            claim = Claim(self._owner, uuid.uuid4().hex, wish.account, *wish.name, wish.fingerprint, have, wish.begin)
            claimed = await self._claim(claim)
            if claimed.state == "other":
                raise IdempotencyError(f"the idempotency key {wish.key!r} was used before with another request")
            if claimed.state == "new" and have:
                self._ledger.tell(Release(claim.token, *wish.name))
            if have and claimed.run != run:
                raise InternalError(f"{wish.what} broke off") if wish.begin == "once" else ended()
            recording, repeated = self._recording(wish, claim, claimed, make)
            if claimed.state == "too_long" or (recording is not None and recording.too_long):
                raise _too_long(wish)
            if recording is not None and recording.kept and claimed.state != "done":
                async with aclosing(self._read_here(wish, recording, grace)) as pieces:
                    async for piece in pieces:
                        yield repeated, piece
                return
            if claimed.state == "none":
                raise NotFoundError(f"{wish.what} does not exist, or is no longer kept")
            done = claimed.state == "done"
            found = self._whole(wish, claimed)[have:] if done else claimed.pieces
            for piece in _wanted(found, have, wish.skip):
                yield True, piece
            if done:
                return
            have, run = have + len(found), claimed.run
            await asyncio.sleep(POLL_SECONDS)

    async def revoke(self, name: Name) -> bool:
        """End an answer wherever it is made, and forget it. Whether there was one."""
        recording = self._made_here.pop(name, None)
        if recording is not None:
            recording.revoke()
        revoked = await self._ledger.ask(Revoke(*name))
        assert isinstance(revoked, Revoked)
        return revoked.found or recording is not None

    async def listed(self, account: str, scope: str, prefix: str) -> list[Entry]:
        """What there is of an account under a scope's keys that begin so; oldest first."""
        listed = await self._ledger.ask(ListKept(account, scope, prefix))
        assert isinstance(listed, Listed)
        entries = []
        for entry in listed.entries:
            recording = self._made_here.get((scope, entry.key))
            here = recording is not None and entry.state == "running"
            entries.append(msgspec.structs.replace(entry, events=recording.events) if here and recording else entry)
        return sorted(entries, key=lambda entry: -entry.age)

    def _recording(self, wish: Wish, claim: Claim, claimed: Claimed, make: Make | None) -> tuple[Recording | None, bool]:
        """The answer that is made here, begun if need be, and whether it was made for another request."""
        recording = self._made_here.get(wish.name)
        if claimed.state != "new" or make is None:
            return recording, True
        same = recording is not None and recording.kept and recording.fingerprint == wish.fingerprint
        if wish.begin == "once" and same:
            self._ledger.tell(Release(claim.token, *wish.name))  # the ledger has forgotten whose it is: it runs here, and once
            return recording, True
        if wish.begin == "anew" and recording is not None:
            recording.revoke()
        return self._begin(claim, make), False

    async def _read_here(self, wish: Wish, recording: Recording, grace: float) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(recording.read(grace, wish.skip)) as pieces:
                async for piece in pieces:
                    yield piece
            if wish.skip and wish.skip >= recording.pieces:
                raise _beyond(wish)
        finally:
            if recording.left:
                self._bound(wish.account, recording)

    def _whole(self, wish: Wish, claimed: Claimed) -> list[bytes]:
        whole = self._decoder.decode(claimed.result)
        if not whole and wish.begin != "once":
            raise _too_long(wish)
        if wish.skip and wish.skip >= len(whole):
            raise _beyond(wish)
        return whole

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
                events = event_number(whole[-1]) if whole else None
                self._ledger.tell(Keep(claim.token, *name, self._encoder.encode(whole), events))
            elif recording.too_long and claim.begin != "once":
                self._ledger.tell(Keep(claim.token, *name, self._encoder.encode([])))  # so that who comes for it is told
            else:
                self._ledger.tell(Release(claim.token, *name))

        recording.start(making()).add_done_callback(on_made)
        return recording


def _wanted(pieces: list[bytes], first: int, skip: int) -> list[bytes]:
    """Those of an answer's pieces from number `first` on that are not to be skipped."""
    return (pieces[:1] if first == 0 else []) + pieces[max(1 + skip - first, 1 if first == 0 else 0) :]


def _too_long(wish: Wish) -> ConflictError:
    return ConflictError(f"{wish.what} is longer than {MAX_RESULT_BYTES} bytes: not kept")


def _beyond(wish: Wish) -> InvalidRequestError:
    return InvalidRequestError(f"from {wish.skip} is beyond the end of {wish.what}", param="from")
