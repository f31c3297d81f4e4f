"""What front ends and the batch worker are told when they start, and what they and the supervisor tell each other later."""

from __future__ import annotations

from typing import Any

import msgspec

from jaxserve.config.server import ServerConfig
from jaxserve.engine.replicas.resuming import Orders
from jaxserve.errors import JaxserveError
from server.gateway.messages import Message


class ReplicaPlace(msgspec.Struct, frozen=True, array_like=True):
    """A replica of a fleet.

    Attributes:
        id: unique among all that there ever were.
        address: ZeroMQ endpoint of its engine.
        pool: the one it belongs to.
        weight: its speed, as a multiple of others'.
    """

    id: str
    address: str
    pool: str
    weight: float


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach engines that are many, of which notices say where.

    Attributes:
        routing: settings of RoutingConfig.
        pools: what goes to each, first to the first of the model that fits.
        key: public key of the replicas' engines.
    """

    routing: dict[str, Any]
    pools: list[PoolRule]
    key: str

    @property
    def models(self) -> dict[str, list[PoolRule]]:
        """The pools of each model, by its name, in the order in which they first appear."""
        found: dict[str, list[PoolRule]] = {}
        for pool in self.pools:
            found.setdefault(pool.model, []).append(pool)
        return found


class PoolRule(msgspec.Struct, frozen=True, kw_only=True):
    """What goes to a pool; see PoolConfig.

    Attributes:
        model: name of the model that its replicas serve.
    """

    name: str
    model: str
    classes: list[str]
    min_tokens: int
    max_tokens: int | None


class LinkedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a process runs that speaks to the engine.

    Attributes:
        name: unique among all of the server, those that are gone too.
        restarts: how often one in its place was started before.
        engine: ZeroMQ endpoint of the engine, or how the fleet's are reached.
        config: the server's, with the ports that the supervisor got.
    """

    name: str
    restarts: int
    engine: str | FleetSpec
    config: dict[str, Any]
    metrics: str

    def server_config(self) -> ServerConfig:
        return msgspec.convert(self.config, ServerConfig)


class FrontEndSpec(LinkedSpec, frozen=True, kw_only=True):
    """What a front end runs.

    Attributes:
        http_socket: file descriptor of the listening HTTP socket.
    """

    http_socket: int


class NowReady(msgspec.Struct, frozen=True, tag=True):
    """The process serves."""


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """The process cannot serve."""

    error: JaxserveError


class DrainServer(msgspec.Struct, frozen=True, tag=True):
    """A client asked for the end of the server."""


class EngineLost(msgspec.Struct, frozen=True, tag=True):
    """The engine ended with these requests of the process in it, those with most output first."""

    in_flight: list[str]


class EngineFound(msgspec.Struct, frozen=True, tag=True):
    """The process is connected to the next engine. Answered by Orders."""


class TrialPassed(msgspec.Struct, frozen=True, tag=True):
    """A request on trial ran for as long as it had to."""

    request: str


class SuspectEnded(msgspec.Struct, frozen=True, tag=True):
    """A request that was in an engine that ended is over."""

    request: str


TrialQuestion = EngineLost | EngineFound | TrialPassed | SuspectEnded
Request = DrainServer | TrialQuestion | Message  # what processes ask of the supervisor, who keeps the ledger
Question = NowReady | StartFailed | Request


class EngineGone(msgspec.Struct, frozen=True, tag=True):
    """Why there is no engine now.

    Attributes:
        final: whether there will be none any more.
    """

    error: JaxserveError
    final: bool = False


class Home(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Where processes meet from now on, or why they cannot.

    Attributes:
        error: why new processes do not find the engine there; None if they do.
    """

    engine: str | FleetSpec
    metrics: str
    error: JaxserveError | None = None


class Replicas(msgspec.Struct, frozen=True, tag=True):
    """All replicas that take requests."""

    places: list[ReplicaPlace]


Notice = EngineGone | Home | Replicas | Orders  # what the supervisor tells processes
