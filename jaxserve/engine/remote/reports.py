"""What an engine process is told when it starts and when it is to move, and what it reports to its parent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from jaxserve.engine.activity import Activity
from jaxserve.engine.remote.codec import decoder
from jaxserve.engine.remote.curve import CurveKeys
from jaxserve.engine.remote.server import MAX_UNREAD
from jaxserve.errors import JaxserveError

MODEL_BUILDER = "jaxserve.engine.remote.model:model_engine"


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine process runs.

    Attributes:
        address: ZeroMQ endpoint that it listens at.
        argument: plain data for the builder.
        builder: "module:function"; see `jaxserve.engine.remote.builders`.
        max_unread: see EngineServer.
        log_level: least severe message to log.
        log_format: "text" or "json".
        restarts: how often an engine in its place was started before.
        after_hang: whether the one before it was killed because it stood still.
        metrics: directory that it shares its metrics in; None for metrics that nobody reads.
        keys: of an engine that listens on a network; see EngineServer.
    """

    address: str
    argument: dict[str, Any]
    builder: str = MODEL_BUILDER
    max_unread: int = MAX_UNREAD
    log_level: str = "info"
    log_format: str = "text"
    restarts: int = 0
    after_hang: bool = False
    metrics: str | None = None
    keys: CurveKeys | None = None


class Move(msgspec.Struct, frozen=True):
    """From now on the engine listens at another address too, and shares its metrics in another directory."""

    address: str
    metrics: str


class Progressed(msgspec.Struct, frozen=True, tag="progress"):
    """How far the start is: `done` of `total` of something."""

    what: str
    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine listens; what it says of itself."""

    banner: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine could not be built."""

    error: JaxserveError


class Pulse(msgspec.Struct, frozen=True, tag="pulse"):
    """The engine that listens is alive.

    Attributes:
        heartbeat: time of its loop's latest turn, by the machine's monotonic clock.
        activity: what the loop does.
    """

    heartbeat: float
    activity: Activity


Report = Progressed | Ready | Failed | Pulse

decode_report: Callable[[bytes], Report] = decoder(Report).decode
decode_move: Callable[[bytes], Move] = decoder(Move).decode
