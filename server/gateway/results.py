"""Results under keys of clients: who runs a request, and what came of it, for a while and within bounds."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from server.gateway.messages import Claim, Claimed, Entry, Keep, Listed, ListKept, Share, Wanted

KEPT_SECONDS = 3600.0
MAX_KEPT_BYTES = 256 * 2**20
MAX_ACCOUNT_BYTES = 32 * 2**20  # of one account
MAX_ACCOUNT_RESULTS = 10_000
MAX_RESULT_BYTES = 4 * 2**20  # of one result; longer ones are not kept
_ENTRY_BYTES = 512  # of a kept result besides its bytes: the bound holds for many small ones too


WANTED_SECONDS = 2.0  # after which whoever waits for what runs elsewhere has asked again


@dataclass(slots=True)
class _Running:
    """A claimed request.

    Attributes:
        wanted: until when it is known that others wait for it.
        pieces: of its answer, for them; None if that would be too much.
    """

    fingerprint: bytes
    owner: str
    token: str
    account: str
    since: float
    wanted: float = -math.inf
    pieces: list[bytes] | None = field(default_factory=list)
    bytes: int = 0
    too_long: bool = False


@dataclass(frozen=True, slots=True)
class _Kept:
    fingerprint: bytes
    token: str
    result: bytes
    since: float
    until: float
    account: str
    events: int | None

    @property
    def size(self) -> int:
        return len(self.result) + _ENTRY_BYTES


Name = tuple[str, str]  # scope and key


@dataclass(slots=True)
class _Holding:
    """What an account holds: its results, oldest first, and their bytes."""

    names: OrderedDict[Name, None] = field(default_factory=OrderedDict)
    bytes: int = 0


@dataclass(slots=True)
class Results:
    """Claims of running requests and results of past ones. Times are seconds of a monotonic clock.

    An account makes room for its own results. Where all together have too many, the one with the most gives up its oldest: who
    holds less than an equal share of the whole loses nothing to others.
    """

    _running: dict[Name, _Running] = field(default_factory=dict)
    _kept: OrderedDict[Name, _Kept] = field(default_factory=OrderedDict)  # oldest first
    _shares: dict[str, _Holding] = field(default_factory=dict)
    _revoked: dict[str, str] = field(default_factory=dict)  # token of what is to end -> the front end that runs it
    _shared: Counter[str] = field(default_factory=Counter)  # bytes of what runs, by account
    _bytes: int = 0

    @property
    def kept_bytes(self) -> int:
        """What is held of past requests, in bytes."""
        return self._bytes

    def claim(self, ask: Claim, now: float) -> Claimed:
        """Whether the request is to run; if so its key is taken."""
        self._expire(now)
        name = (ask.scope, ask.key)
        if ask.begin == "anew":
            self.revoke(name, now)
        known = self._running.get(name) or self._kept.get(name)
        if known is None and ask.begin == "never":
            return Claimed("none")
        if known is None:
            self._running[name] = _Running(ask.fingerprint, ask.owner, ask.token, ask.account, now)
            return Claimed("new", ask.owner)
        if known.fingerprint != ask.fingerprint:
            return Claimed("other")
        if isinstance(known, _Kept):
            return Claimed("done", result=known.result, run=known.token)
        if known.too_long:
            return Claimed("too_long", known.owner)
        if ask.owner == known.owner:  # which has the pieces itself
            return Claimed("running", known.owner, run=known.token)
        known.wanted = now + WANTED_SECONDS
        return Claimed("running", known.owner, run=known.token, pieces=(known.pieces or [])[ask.have :])

    def wanted(self, owner: str, now: float) -> Wanted:
        """What others wait for of what this front end runs, and what of it is to end."""
        running = [one for one in self._running.values() if one.owner == owner and one.wanted > now]
        pieces = {one.token: None if one.pieces is None else len(one.pieces) for one in running}
        return Wanted(pieces, [token for token, runs in self._revoked.items() if runs == owner])

    def share(self, told: Share) -> None:
        """Take pieces of an answer that is being made, as far as its account has room; the rest then comes with its end."""
        claim = self._running.get((told.scope, told.key))
        if claim is None or claim.token != told.token:
            return
        claim.too_long = claim.too_long or told.too_long
        if claim.pieces is None or told.first != len(claim.pieces):
            return
        size = sum(map(len, told.pieces))
        too_much = self._shared[claim.account] + size > MAX_ACCOUNT_BYTES or self._shared.total() + size > MAX_KEPT_BYTES
        if claim.too_long or too_much:
            self._unshare(claim)
            return
        claim.pieces += told.pieces
        claim.bytes += size
        self._shared[claim.account] += size

    def keep(self, told: Keep, now: float) -> None:
        """Keep the result of a request that was claimed with this token; the account's oldest ones make room."""
        name = (told.scope, told.key)
        claim = self._take(told.token, name)
        if claim is None or len(told.result) > MAX_RESULT_BYTES:
            return
        kept = _Kept(claim.fingerprint, told.token, told.result, claim.since, now + KEPT_SECONDS, claim.account, told.events)
        share = self._shares.setdefault(claim.account, _Holding())
        self._kept[name] = kept
        share.names[name] = None
        share.bytes += kept.size
        self._bytes += kept.size
        while share.bytes > MAX_ACCOUNT_BYTES or len(share.names) > MAX_ACCOUNT_RESULTS:
            self._drop(next(iter(share.names)))
        while self._bytes > MAX_KEPT_BYTES:
            self._drop(next(iter(max(self._shares.values(), key=lambda one: one.bytes).names)))

    def release(self, token: str, name: Name) -> None:
        self._take(token, name)

    def revoke(self, name: Name, now: float) -> bool:
        """Forget what is known of a request; one that runs is to end. Whether anything was known."""
        self._expire(now)
        if name in self._kept:
            self._drop(name)
            return True
        claim = self._running.pop(name, None)
        if claim is None:
            return False
        self._unshare(claim)
        self._revoked[claim.token] = claim.owner
        return True

    def listed(self, ask: ListKept, now: float) -> Listed:
        """What runs or is kept of one scope and account."""
        self._expire(now)
        running = [
            Entry(key, "running", now - one.since)
            for (scope, key), one in self._running.items()
            if scope == ask.scope and one.account == ask.account and key.startswith(ask.prefix)
        ]
        names = self._shares[ask.account].names if ask.account in self._shares else ()
        kept = [(name[1], self._kept[name]) for name in names if name[0] == ask.scope and name[1].startswith(ask.prefix)]
        return Listed([*running, *(Entry(key, "done", now - one.since, one.events) for key, one in kept)])

    def forget(self, owner: str) -> None:
        self._revoked = {token: runs for token, runs in self._revoked.items() if runs != owner}
        for name in [name for name, claim in self._running.items() if claim.owner == owner]:
            self._unshare(self._running.pop(name))

    def _take(self, token: str, name: Name) -> _Running | None:
        self._revoked.pop(token, None)
        claim = self._running.get(name)
        if claim is None or claim.token != token:
            return None
        self._unshare(claim)
        return self._running.pop(name)

    def _unshare(self, claim: _Running) -> None:
        """Let go of its pieces; no more are taken."""
        self._shared[claim.account] -= claim.bytes
        if not self._shared[claim.account]:
            del self._shared[claim.account]
        claim.bytes, claim.pieces = 0, None

    def _expire(self, now: float) -> None:
        while self._kept and next(iter(self._kept.values())).until <= now:
            self._drop(next(iter(self._kept)))

    def _drop(self, name: Name) -> None:
        kept = self._kept.pop(name)
        share = self._shares[kept.account]
        del share.names[name]
        share.bytes -= kept.size
        self._bytes -= kept.size
        if not share.names:
            del self._shares[kept.account]
