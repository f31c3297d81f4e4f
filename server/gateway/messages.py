"""What front ends ask the ledger, and what it answers; the same in one process and over a wire."""

from __future__ import annotations

from typing import Literal

import msgspec

from jaxserve.config.keys_file import TenantLimits

Limit = Literal["requests", "tokens", "concurrent", "daily", "size"]
Begin = Literal["once", "anew", "never"]


class Reserve(msgspec.Struct, frozen=True, tag=True):
    """May this request run? Charges it by estimate if so; answered by Granted or Refused.

    Attributes:
        reservation: a name that nobody else has.
        prompt_tokens: of all its prompts, estimated.
        sequences: outputs, of all its prompts.
        max_tokens: of one output, None if it does not say.
        background: whether only the tokens of the day stand against it, and are charged.
    """

    owner: str
    reservation: str
    tenant: str
    limits: TenantLimits
    prompt_tokens: int
    sequences: int
    max_tokens: int | None
    background: bool = False


class Settle(msgspec.Struct, frozen=True, tag=True):
    """A reserved request is over: charge what it took instead of the estimate. Answered by Done.

    Attributes:
        finished: outputs among them that came to their own end: from them the ledger learns how long outputs are.
    """

    reservation: str
    prompt_tokens: int
    output_tokens: int
    finished: int


class Peek(msgspec.Struct, frozen=True, tag=True):
    """What is left for a tenant? Answered by Levels."""

    tenant: str
    limits: TenantLimits


class Claim(msgspec.Struct, frozen=True, tag=True):
    """Has a request with this key been seen? Answered by Claimed.

    Attributes:
        token: a name of this claim that no other has.
        account: whose share of what is kept the result takes from: that of the API key's tenant, one for all without keys.
        scope: the tenant that the client is, or says it is.
        have: pieces of the answer that whoever asks has got already.
        begin: whether whoever asks runs it: if nobody has, in any case, so that what runs under the key is revoked, or never.
    """

    owner: str
    token: str
    account: str
    scope: str
    key: str
    fingerprint: bytes
    have: int = 0
    begin: Begin = "once"


class Keep(msgspec.Struct, frozen=True, tag=True):
    """The result of a claimed request, for those who come with the same key. Answered by Done.

    Attributes:
        events: how many there are, if it is a stream whose events have numbers.
    """

    token: str
    scope: str
    key: str
    result: bytes
    events: int | None = None


class Release(msgspec.Struct, frozen=True, tag=True):
    """A claimed request has no result worth keeping: the next with its key runs. Answered by Done."""

    token: str
    scope: str
    key: str


class Revoke(msgspec.Struct, frozen=True, tag=True):
    """What runs under a key is to end, and its result is forgotten. Answered by Revoked."""

    scope: str
    key: str


class ListKept(msgspec.Struct, frozen=True, tag=True):
    """What runs or is kept of an account, under keys of a scope that begin so? Answered by Listed."""

    account: str
    scope: str
    prefix: str


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Which of the requests that this front end runs do others wait for, and which are to end? Answered by Wanted."""

    owner: str


class Share(msgspec.Struct, frozen=True, tag=True):
    """Pieces of an answer that is being made, for those who wait for it elsewhere. Answered by Done.

    Attributes:
        first: which piece of the answer they begin with.
        too_long: whether the answer is longer than is kept, so that nobody who comes now gets it.
    """

    token: str
    scope: str
    key: str
    first: int
    pieces: list[bytes]
    too_long: bool = False


class Forget(msgspec.Struct, frozen=True, tag=True):
    """A front end is gone: settle what it reserved by its estimate, release what it claimed. Answered by Done."""

    owner: str


Message = Reserve | Settle | Peek | Claim | Keep | Release | Revoke | ListKept | Watch | Share | Forget


class Level(msgspec.Struct, frozen=True):
    """One limit a minute: how much it is, what is left, and microseconds until all of it is there again."""

    limit: int
    remaining: int
    reset: int


class Levels(msgspec.Struct, frozen=True, tag=True):
    """What is left for a tenant; None where it has no limit."""

    requests: Level | None = None
    tokens: Level | None = None


class Granted(msgspec.Struct, frozen=True, tag=True):
    levels: Levels


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The request may not run now.

    Attributes:
        limit: which one stands against it; "size" is one that could never be met.
        wait: microseconds until it could run; None if nobody knows.
        allowed, used, asked: the limit, how much of it is taken, and how much of it the request asks for.
    """

    limit: Limit
    wait: int | None
    allowed: int
    used: int
    asked: int
    levels: Levels


class Claimed(msgspec.Struct, frozen=True, tag=True):
    """Whether the request is to run.

    Attributes:
        state: "new": run it, then Keep or Release. "running": `owner` runs it. "done": `result` is its result. "other": the key
            belongs to another request. "too_long": it runs, and its answer is not kept. "none": nobody runs or ran it.
        run: token of the claim that runs or ran it.
        pieces: of the answer that is being made, after those that whoever asks has; none where they are not shared.
    """

    state: Literal["new", "running", "done", "other", "too_long", "none"]
    owner: str = ""
    result: bytes = b""
    run: str = ""
    pieces: list[bytes] = []


class Wanted(msgspec.Struct, frozen=True, tag=True):
    """What others want of requests that a front end runs.

    Attributes:
        pieces: those that others wait for, by the token of their claim: how many pieces there are; None where no more are taken.
        revoked: tokens of those that are to end.
    """

    pieces: dict[str, int | None]
    revoked: list[str] = []


class Revoked(msgspec.Struct, frozen=True, tag=True):
    """Whether there was anything to revoke."""

    found: bool


class Entry(msgspec.Struct, frozen=True):
    """One answer that runs or is kept.

    Attributes:
        age: seconds since it began.
        events: how many there are, where that is known.
    """

    key: str
    state: Literal["running", "done"]
    age: float
    events: int | None = None


class Listed(msgspec.Struct, frozen=True, tag=True):
    entries: list[Entry]


class Done(msgspec.Struct, frozen=True, tag=True):
    """It is done; there is nothing to say."""


Reply = Granted | Refused | Levels | Claimed | Revoked | Listed | Wanted | Done
