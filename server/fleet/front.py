"""The ingress's process: the server without an engine of its own, told by its parent which replicas there are."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import msgspec

from jaxserve.children import Parent, adopt, receive_frame
from jaxserve.config.fields import ServerConfig
from jaxserve.engine.remote.codec import decoder, encode, presentable
from jaxserve.errors import EngineDeadError, JaxserveError
from jaxserve.logs import set_up_logging
from server.processes.engines import EngineHost
from server.processes.specs import FleetSpec, Replicas
from server.processes.supervisor import Announcer, Supervisor

_EXIT_FAILED = 2

_LOG = logging.getLogger(__name__)


class FrontSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the process serves, and how it finds its engines."""

    config: dict[str, Any]
    fleet: FleetSpec

    def server_config(self) -> ServerConfig:
        return msgspec.convert(self.config, ServerConfig)


class FrontReady(msgspec.Struct, frozen=True, tag="ready"):
    """It serves at these addresses."""

    http: str
    grpc: str


class FrontFailed(msgspec.Struct, frozen=True, tag="failed"):
    """It cannot serve."""

    error: JaxserveError


FromFront = FrontReady | FrontFailed

_REPLICAS: msgspec.msgpack.Decoder[Replicas] = decoder(Replicas)
_FROM_FRONT: msgspec.msgpack.Decoder[FromFront] = decoder(FromFront)


def decode_from_front(content: bytes) -> FromFront:
    return _FROM_FRONT.decode(content)


class ToldReplicas:
    """Engines that somebody else keeps: passes on what the parent says of them."""

    def __init__(self, fleet: FleetSpec, reader: asyncio.StreamReader, host: EngineHost) -> None:
        self.target = fleet
        self._reader = reader
        self._host = host
        self._ready = False
        self.up = False

    async def run(self) -> None:
        """Pass on what comes. Raises EngineDeadError once the parent is gone, which ends the server."""
        while (content := await receive_frame(self._reader)) is not None:
            replicas = _REPLICAS.decode(content)
            self._host.tell(replicas)
            there = {place.pool for place in replicas.places}
            self.up = all(any(pool.name in there for pool in pools) for pools in self.target.models.values())
            if self.up and not self._ready:
                self._ready = True
                self._host.on_ready(f"the first of the fleet's replicas: {', '.join(one.id for one in replicas.places)}")
        raise EngineDeadError("the ingress is gone")

    async def stop(self) -> None:
        """They are not ours to end."""

    def move(self) -> None:
        """They listen where they are."""


def main() -> int:
    """Serve until told to drain, or the parent is gone. Returns the exit code: 0 after a drain, 2 if it cannot serve."""
    parent, first = adopt()
    spec = msgspec.json.decode(first, type=FrontSpec)
    config = spec.server_config()
    set_up_logging(config.log_level, config.log_format)
    try:
        asyncio.run(_serve(spec, config, parent))
    except JaxserveError as error:
        _LOG.error("the ingress cannot serve: %s", error.message)
        parent.send(encode(FrontFailed(presentable(error))))
        return _EXIT_FAILED
    return 0


async def _serve(spec: FrontSpec, config: ServerConfig, parent: Parent) -> None:
    reader, _ = await asyncio.open_connection(sock=parent.socket.dup())
    announcer = Announcer(
        progress=lambda what, done, total: None,
        banner=lambda banner: _LOG.info("%s", banner),
        ready=lambda addresses: parent.send(encode(FrontReady(addresses.http, addresses.grpc))),
    )
    await Supervisor(lambda host: ToldReplicas(spec.fleet, reader, host), config, announcer).run()


if __name__ == "__main__":
    sys.exit(main())
