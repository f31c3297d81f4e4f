"""What an engine and its front ends say to each other; updates go as the scheduler made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from jaxserve.engine.activity import Activity
from jaxserve.engine.death import EngineDeath
from jaxserve.engine.link import EngineDescription, EngineLoad, HeldChange
from jaxserve.engine.loop import Refusal
from jaxserve.engine.remote.codec import decoder, encode
from jaxserve.errors import JaxserveError
from jaxserve.scheduler.request import EngineRequest, Sibling, Update
from jaxserve.versions import version_of


def protocol() -> str:
    """What both sides must have in common: the release, for nothing here is kept stable between releases."""
    return f"jaxserve {version_of('jaxserve')}"


class _Message(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """Arrays on the wire, told apart by their first element."""


class Hello(_Message, frozen=True, tag="hello"):
    protocol: str


class _Group(msgspec.Struct, frozen=True, array_like=True):
    """The sequences of one request: the first, and in what the others differ from it."""

    request: EngineRequest
    siblings: list[Sibling]


class Add(_Message, frozen=True, tag="add"):
    """The sequences of one request, which are decoded by themselves: if that fails, only this request does.

    Attributes:
        ids: of its sequences.
    """

    ids: list[str]
    group: msgspec.Raw

    @classmethod
    def of(cls, requests: Sequence[EngineRequest]) -> Add:
        """Raises what encoding the request raises."""
        first = requests[0]
        if first.params.stop:
            # Stop strings are watched for where the text is made: the engine need not have them, and they may be no UTF-8.
            first = replace(first, params=replace(first.params, stop=()))
        group = _Group(first, [Sibling(one.id, one.seed, one.output) for one in requests[1:]])
        return cls([one.id for one in requests], msgspec.Raw(encode(group)))

    @property
    def requests(self) -> list[EngineRequest]:
        """Raises what decoding them raises."""
        group = _GROUP.decode(self.group)
        return group.request.with_siblings(group.siblings)


class Abort(_Message, frozen=True, tag="abort"):
    ids: list[str]


class Demote(_Message, frozen=True, tag="demote"):
    ids: list[str]
    demoted: bool


class Call(_Message, frozen=True, tag="call"):
    """An EngineCall; its answer has the same number, so it is decoded by itself: one that nobody understands is answered, too."""

    number: int
    call: msgspec.Raw


class Watch(_Message, frozen=True, tag="watch"):
    """The front end wants to know what the engine's prefix cache holds, of the last page of `every` so many, from now on."""

    every: int


class Ping(_Message, frozen=True, tag="ping"):
    """Attributes:
    sent: time by the front end's clock.
    """

    sent: float


class Welcome(_Message, frozen=True, tag="welcome"):
    description: EngineDescription


class Pong(_Message, frozen=True, tag="pong"):
    """What a ping is answered with.

    Attributes:
        sent: as in the ping.
        now: time by the engine's clock, which is another one than the front end's where their machines differ.
    """

    sent: float
    now: float


class Turned(_Message, frozen=True, tag="turned"):
    """What a turn of the engine was to one front end; from time to time also where it was nothing.

    Attributes:
        heartbeat: time of the latest turn, by the machine's monotonic clock.
        activity: what the engine's loop does, by that clock.
    """

    heartbeat: float
    load: EngineLoad
    updates: Sequence[Update] = ()
    refusals: Sequence[Refusal] = ()
    activity: Activity = Activity(0.0)


class Held(_Message, frozen=True, tag="held"):
    """What changed; of who just asked, everything."""

    change: HeldChange


NOTHING = msgspec.Raw(msgspec.msgpack.encode(None))


class Answer(_Message, frozen=True, tag="answer"):
    number: int
    result: msgspec.Raw = NOTHING  # of the type that the call says
    error: JaxserveError | None = None


class Farewell(_Message, frozen=True, tag="farewell"):
    """The engine runs nothing of this front end any more: it died, or does not take the front end as it is."""

    error: JaxserveError
    death: EngineDeath | None = None


FromFrontend = Hello | Add | Abort | Demote | Call | Watch | Ping
FromEngine = Welcome | Turned | Held | Answer | Pong | Farewell

_GROUP: msgspec.msgpack.Decoder[_Group] = decoder(_Group)
_FROM_FRONTEND: msgspec.msgpack.Decoder[FromFrontend] = decoder(FromFrontend)
_FROM_ENGINE: msgspec.msgpack.Decoder[FromEngine] = decoder(FromEngine)


def decode_from_frontend(content: bytes) -> FromFrontend:
    """The message to an engine. Raises msgspec.DecodeError."""
    return _FROM_FRONTEND.decode(content)


def decode_from_engine(content: bytes) -> FromEngine:
    """The message to a front end. Raises msgspec.DecodeError."""
    return _FROM_ENGINE.decode(content)
