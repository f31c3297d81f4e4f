"""The ingress's process: the server without an engine of its own, told by its parent which replicas there are."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from jaxserve.children import Parent, adopt, receive_frame, send_frame
from jaxserve.clock import RealClock
from jaxserve.config.server import ServerConfig
from jaxserve.engine.remote.codec import decoder, encode, presentable
from jaxserve.errors import EngineDeadError, InternalError, JaxserveError
from jaxserve.logs import set_up_logging
from server.fleet.ray_watch import RayServices, RayWatch
from server.gateway.leased import LeasedLedger
from server.gateway.shared import Shared, SharedLedger, SharedReply
from server.ports import Addresses
from server.processes.engines import EngineHost
from server.processes.specs import FleetSpec, Replicas, TrialQuestion
from server.processes.supervisor import Announcer, Peers, Supervisor

_EXIT_FAILED = 2
RETRY_SECONDS = 60.0  # that a fleet takes to start again, about

_LOG = logging.getLogger(__name__)


class PeerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an ingress of several is told of the others.

    Attributes:
        name: its own, which no other ever had.
        among, admits: see LeasedLedger.
    """

    name: str
    among: int
    admits: bool


class FrontSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the process serves, and how it finds its engines.

    Attributes:
        peers: None where it is the only ingress.
        ray: services without which it ends; None for none.
    """

    config: dict[str, Any]
    fleet: FleetSpec
    peers: PeerSpec | None = None
    ray: RayServices | None = None

    def server_config(self) -> ServerConfig:
        return msgspec.convert(self.config, ServerConfig)


class FrontReady(msgspec.Struct, frozen=True, tag="ready"):
    """It serves at these addresses."""

    http: str
    grpc: str


class FrontFailed(msgspec.Struct, frozen=True, tag="failed"):
    """It cannot serve."""

    error: JaxserveError


class FrontAsks(msgspec.Struct, frozen=True, tag="asks"):
    """It asks the ledger that ingresses share."""

    number: int
    message: Shared


class Told(msgspec.Struct, frozen=True, tag="told"):
    """What that ledger answered, or why it did not."""

    number: int
    reply: SharedReply | None = None
    error: JaxserveError | None = None


FromFront = FrontReady | FrontFailed | FrontAsks

_FROM_PARENT: msgspec.msgpack.Decoder[Replicas | Told] = decoder(Replicas | Told)
_FROM_FRONT: msgspec.msgpack.Decoder[FromFront] = decoder(FromFront)


def decode_from_front(content: bytes) -> FromFront:
    return _FROM_FRONT.decode(content)


def answer_front(ledger: SharedLedger, name: str, content: bytes) -> bytes:
    """What a shared ledger answers to a FrontAsks of the ingress `name`, as the ingress is to be told."""
    asked = decode_from_front(content)
    assert isinstance(asked, FrontAsks)
    try:
        return encode(Told(asked.number, ledger.handle(name, asked.message)))
    except JaxserveError as error:
        return encode(Told(asked.number, error=error))


class SharedWay:
    """The way to the ledger that ingresses share, through the parent."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[SharedReply]] = {}

    async def ask(self, message: Shared) -> SharedReply:
        """Ask. Raises JaxserveError if there is no answer, or it is one."""
        number = next(self._numbers)
        answer: asyncio.Future[SharedReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send(encode(FrontAsks(number, message)))
            return await answer
        finally:
            del self._waiting[number]

    def take(self, told: Told) -> None:
        answer = self._waiting.get(told.number)
        if answer is None or answer.done():
            return
        if told.reply is not None:
            answer.set_result(told.reply)
        else:
            answer.set_exception(told.error or InternalError("the fleet's ledger gave no answer"))


class ToldReplicas:
    """Engines that somebody else keeps: passes on what the parent says of them, and what else it says."""

    def __init__(
        self,
        fleet: FleetSpec,
        reader: asyncio.StreamReader,
        shared: SharedWay,
        host: EngineHost,
        ray: RayServices | None = None,
    ) -> None:
        self.target = fleet
        self._watch = RayWatch(ray or RayServices({}))
        self._reader = reader
        self._shared = shared
        self._host = host
        self._ready = False
        self.up = False

    async def run(self) -> None:
        """Forward messages. Raises EngineDeadError once the parent or Ray is gone, which ends the server."""
        reading, losing = asyncio.create_task(self._read()), asyncio.create_task(self._watch.lost())
        try:
            await asyncio.wait((reading, losing), return_when=asyncio.FIRST_COMPLETED)
            lost = losing.result() if losing.done() else "the ingress's actor"
            if reading.done():
                reading.result()
            error = EngineDeadError(f"the fleet has lost {lost}: it ends", retry_after=RETRY_SECONDS)
            self._host.explain(error, True)  # a drain alone would let streams run until Ray takes the engines away
            raise error
        finally:
            reading.cancel()
            losing.cancel()

    async def _read(self) -> None:
        while (content := await receive_frame(self._reader)) is not None:
            replicas = _FROM_PARENT.decode(content)
            if isinstance(replicas, Told):
                self._shared.take(replicas)
                continue
            self._host.tell(replicas)
            there = {place.pool for place in replicas.places}
            self.up = all(any(pool.name in there for pool in pools) for pools in self.target.models.values())
            if self.up and not self._ready:
                self._ready = True
                self._host.on_ready(f"the first of the fleet's replicas: {', '.join(one.id for one in replicas.places)}")

    async def stop(self) -> None:
        """They are not ours to end."""

    def answer(self, process: str, question: TrialQuestion) -> None:
        """Processes find suspects by themselves: each has its own way to every replica."""

    def process_gone(self, process: str) -> None:
        """Nothing is known of its requests."""

    def move(self) -> None:
        """They listen where they are."""


def main() -> int:
    """Serve until told to drain, or the parent is gone. Returns the exit code: 0 after a drain, 2 if it cannot serve."""
    parent, first = adopt(outlives=True)  # clients are notified of a lost node or GCS first
    spec = msgspec.json.decode(first, type=FrontSpec)
    config = spec.server_config()
    set_up_logging(config.log_level, config.log_format)
    try:
        asyncio.run(_serve(spec, config, parent))
    except JaxserveError as error:
        _LOG.error("the ingress cannot serve: %s", error.message)
        parent.socket.setblocking(True)  # which the event loop does not leave it
        parent.send(encode(FrontFailed(presentable(error))))
        return _EXIT_FAILED
    return 0


async def _serve(spec: FrontSpec, config: ServerConfig, parent: Parent) -> None:
    # All that is sent goes by the event loop's writer: the socket that the parent's own `send` has does not block any more.
    reader, writer = await asyncio.open_connection(sock=parent.socket.dup())
    send = partial(send_frame, writer)
    shared, peers = SharedWay(send), spec.peers
    ledger = None
    if peers is not None:
        ledger = LeasedLedger(peers.name, shared.ask, RealClock(), among=peers.among, admits=peers.admits)

    def ready(addresses: Addresses) -> None:
        if ledger is not None:
            ledger.addresses = (addresses.http, addresses.grpc)
        send(encode(FrontReady(addresses.http, addresses.grpc)))

    announcer = Announcer(progress=lambda what, done, total: None, banner=lambda banner: _LOG.info("%s", banner), ready=ready)
    supervisor = Supervisor(
        lambda host: ToldReplicas(spec.fleet, reader, shared, host, spec.ray),
        config,
        announcer,
        None if ledger is None else Peers(ledger),
    )
    keeping = None if ledger is None else asyncio.create_task(ledger.keep())
    try:
        await supervisor.run()
    finally:
        if keeping is not None:
            keeping.cancel()


if __name__ == "__main__":
    sys.exit(main())
