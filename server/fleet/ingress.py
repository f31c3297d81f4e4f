"""An ingress as its parent sees it: the process that serves, told of every edition of the directory. Knows nothing of Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

import msgspec

from jaxserve.children import Child, describe_exit, spawn
from jaxserve.config.server import ServerConfig
from jaxserve.engine.remote.codec import encode
from jaxserve.errors import InternalError, OverloadedError
from server.fleet.directory import Edition
from server.fleet.front import FrontAsks, FrontFailed, FrontReady, FrontSpec, PeerSpec, Told, decode_from_front
from server.gateway.shared import ANSWER_SECONDS
from server.processes.specs import FleetSpec, ReplicaPlace, Replicas

_LOG = logging.getLogger(__name__)

FRONT = "server.fleet.front"
ASK_SECONDS = 10.0  # that the directory may take to say that nothing has changed
RETRY_SECONDS = 1.0  # after a directory that did not answer

Ask = Callable[[str, float], Awaitable[Edition]]
"""(number, seconds) -> the directory's first edition that is not this one; see Directory.next_edition."""


AskLedger = Callable[[bytes], Awaitable[bytes]]
"""Asks the ledger that ingresses share, see `answer_front`; raises whatever carries it raises."""


@dataclass(frozen=True, slots=True)
class SharedBy:
    """The other ingresses: what this one is told of them, and how the ledger is reached that all share."""

    spec: PeerSpec
    ask: AskLedger


class Ingress:
    """One serving process. Belongs to the event loop that `start` is called in.

    Args:
        ask: asks the directory.
        peers: None where it is the only one.
    """

    def __init__(self, config: ServerConfig, fleet: FleetSpec, ask: Ask, peers: SharedBy | None = None) -> None:
        self._config = config
        self._fleet = fleet
        self._ask = ask
        self._peers = peers
        self._asking: set[asyncio.Task[None]] = set()
        self._child: Child | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._known: dict[str, ReplicaPlace] = {}
        self._ended: str | None = None

    async def start(self) -> FrontReady:
        """Serve. Returns the addresses once the first replica is there; raises what keeps it from serving."""
        peers = None if self._peers is None else self._peers.spec
        spec = FrontSpec(config=asdict(self._config), fleet=self._fleet, peers=peers)
        child = self._child = await spawn(FRONT, msgspec.json.encode(spec))
        self._tasks.append(asyncio.create_task(self._follow(child)))
        while (content := await child.receive()) is not None:
            first = decode_from_front(content)
            if not isinstance(first, FrontAsks):
                break
            self._pass_on(child, first.number, content)
        else:
            raise InternalError(f"the ingress's process ended while it started, {describe_exit(await child.wait())}")
        if isinstance(first, FrontFailed):
            raise first.error
        self._tasks.append(asyncio.create_task(self._watch(child)))
        return first

    def check(self) -> None:
        """Raise InternalError if the process is gone."""
        if self._ended is not None:
            raise InternalError(f"the ingress's process ended, {self._ended}")

    async def stop(self, patience: float) -> None:
        """Let it drain, `patience` seconds at most."""
        if self._child is not None:
            self._child.signal(signal.SIGTERM)
            await self._child.end_within(patience)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, child: Child) -> None:
        try:
            while (content := await child.receive()) is not None:
                message = decode_from_front(content)
                if isinstance(message, FrontAsks):
                    self._pass_on(child, message.number, content)
        except msgspec.DecodeError as error:  # nothing that follows is to be understood either
            _LOG.error("the ingress's process says what nobody understands: %s", error)
            child.signal(signal.SIGKILL)
        self._ended = describe_exit(await child.wait())

    def _pass_on(self, child: Child, number: int, asked: bytes) -> None:
        """Ask the ledger; in the order in which it is asked, for a task begins after those before it."""
        task = asyncio.create_task(self._answer(child, number, asked))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _answer(self, child: Child, number: int, asked: bytes) -> None:
        assert self._peers is not None, "a process that knows of no others asks nothing"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                told = await self._peers.ask(asked)
        except Exception as error:  # of whatever carries it
            told = encode(Told(number, error=OverloadedError(f"the fleet's ledger does not answer: {error!r}")))
        with contextlib.suppress(OSError):
            child.send(told)

    async def _follow(self, child: Child) -> None:
        """Pass every edition on. While the directory is away, or is not whole yet, what was known stays."""
        number = ""
        while True:
            try:
                edition = await self._ask(number, ASK_SECONDS)
            except Exception as error:  # of whatever carries it: the directory is started again
                _LOG.warning("the directory does not answer: %r", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if edition.number == number:
                continue
            number = edition.number
            places = {one.replica: ReplicaPlace(one.replica, one.address, one.pool, one.weight) for one in edition.listings}
            self._known = places if edition.whole else {**self._known, **places}
            with contextlib.suppress(OSError):
                child.send(encode(Replicas(list(self._known.values()))))
