"""Results under idempotency keys: who runs a request, and what came of it, for a while and within bounds."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from server.gateway.messages import Claim, Claimed

KEPT_SECONDS = 3600.0
MAX_KEPT_BYTES = 256 * 2**20
MAX_ACCOUNT_BYTES = 32 * 2**20  # of one account
MAX_ACCOUNT_RESULTS = 10_000
MAX_RESULT_BYTES = 4 * 2**20  # of one result; longer ones are not kept
_ENTRY_BYTES = 512  # of a kept result besides its bytes: the bound holds for many small ones too


@dataclass(frozen=True, slots=True)
class _Running:
    fingerprint: bytes
    owner: str
    token: str
    account: str


@dataclass(frozen=True, slots=True)
class _Kept:
    fingerprint: bytes
    result: bytes
    until: float
    account: str

    @property
    def size(self) -> int:
        return len(self.result) + _ENTRY_BYTES


Name = tuple[str, str]  # scope and key


@dataclass(slots=True)
class _Share:
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
    _shares: dict[str, _Share] = field(default_factory=dict)
    _bytes: int = 0

    @property
    def kept_bytes(self) -> int:
        """What is held of past requests, in bytes."""
        return self._bytes

    def claim(self, ask: Claim, now: float) -> Claimed:
        """Whether the request is to run; if so its key is taken."""
        self._expire(now)
        name = (ask.scope, ask.key)
        known = self._running.get(name) or self._kept.get(name)
        if known is None:
            self._running[name] = _Running(ask.fingerprint, ask.owner, ask.token, ask.account)
            return Claimed("new", ask.owner)
        if known.fingerprint != ask.fingerprint:
            return Claimed("other")
        if isinstance(known, _Running):
            return Claimed("running", known.owner)
        return Claimed("done", result=known.result)

    def keep(self, token: str, name: Name, result: bytes, now: float) -> None:
        """Keep the result of a request that was claimed with this token; the account's oldest ones make room."""
        claim = self._take(token, name)
        if claim is None or len(result) > MAX_RESULT_BYTES:
            return
        kept = _Kept(claim.fingerprint, result, now + KEPT_SECONDS, claim.account)
        share = self._shares.setdefault(claim.account, _Share())
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

    def forget(self, owner: str) -> None:
        for name in [name for name, claim in self._running.items() if claim.owner == owner]:
            del self._running[name]

    def _take(self, token: str, name: Name) -> _Running | None:
        claim = self._running.get(name)
        if claim is None or claim.token != token:
            return None
        return self._running.pop(name)

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
