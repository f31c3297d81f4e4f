"""The supervisor: the main process of a server. It starts an engine, front ends and a batch worker, and keeps them running."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from jaxserve.children import stop_signals
from jaxserve.clock import RealClock
from jaxserve.config.runtime import METRICS_VARIABLE
from jaxserve.config.server import ServerConfig
from jaxserve.engine.remote.builders import BuildProgress
from jaxserve.engine.replicas.resuming import Orders
from jaxserve.errors import ConfigError, EngineDeadError, JaxserveError
from jaxserve.metrics.shared import remove_process
from server.batches.store import Store
from server.gateway.gateway import check_files, warn_without_keys
from server.gateway.ledger import Ledger, LedgerState
from server.gateway.messages import Forget, Reply
from server.ports import Addresses, authority, bind
from server.processes.engines import EngineHost, OpenEngines
from server.processes.keeper import Keeper, Recipe
from server.processes.runtime import RuntimeDirectory, keep
from server.processes.specs import DrainServer, EngineGone, FrontEndSpec, Home, LinkedSpec, Notice, Request, TrialQuestion
from server.processes.state_lock import StateLock, StateTakenError
from server.tls import load_tls
from server.unsupported.notes import names_of

_LOG = logging.getLogger(__name__)

FRONT_END, BATCHES = "server.processes.frontend", "server.processes.batches"
TAKE_SECONDS = 1.0  # between two tries to take a state directory that another server has
KILL_SECONDS = 10.0  # that front ends may take longer than the drain they were granted

# A front end starts tokenizer processes; gRPC's handlers, for a child that goes on without exec, would only complain about it.
NO_FORK_HANDLERS = {"GRPC_ENABLE_FORK_SUPPORT": "0"}


@dataclass(frozen=True, slots=True)
class Announcer:
    """Whom to tell of the start."""

    progress: BuildProgress
    banner: Callable[[str], None]
    ready: Callable[[Addresses], None]


@dataclass(frozen=True, slots=True)
class Ports:
    """The sockets of a server, held by the supervisor for as long as it runs, whatever becomes of front ends.

    Attributes:
        http: every front end listens at it and accepts its connections.
        grpc: does not listen; it keeps the port, which front ends share, from others.
    """

    http: socket.socket
    grpc: socket.socket

    @classmethod
    def of(cls, config: ServerConfig, *, shared: bool = False) -> Ports:
        """Take the ports of a configuration, which others of this user may share. Raises ConfigError for one that is taken."""
        http = bind(config.host, config.port, "port", shared=shared)
        try:
            if shared:
                return cls(http, bind(config.host, config.grpc_port, "grpc_port", shared=True))
            # Or another could take the port for as long as nobody listens. Front ends set it again, for the next server's sake.
            http.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            bind(config.host, config.grpc_port, "grpc_port").close()  # a shared port could be somebody else's
            grpc = bind(config.host, config.grpc_port, "grpc_port", shared=True)
        except BaseException:
            http.close()
            raise
        return cls(http, grpc)

    def close(self) -> None:
        self.http.close()
        self.grpc.close()


@dataclass(frozen=True, slots=True)
class Peers:
    """What a server shares with others that stand beside it: ports, where they are on one machine; the state directory, of which
    one at a time runs the batches; and the limits of tenants.

    Attributes:
        ledger: leads to the one that all share.
    """

    ledger: Ledger


class Supervisor:
    """Runs a server.

    Args:
        engines: what its front ends speak to.
        peers: other servers beside it, if there are any.
    """

    def __init__(self, engines: OpenEngines, config: ServerConfig, announcer: Announcer, peers: Peers | None = None) -> None:
        self._ports = Ports.of(config, shared=peers is not None)
        self._shares_state = peers is not None and config.state_dir is not None
        try:
            if self._shares_state:
                check_store(config)
            self._state = None if self._shares_state else _take_state(config)
            self._runtime = RuntimeDirectory(None if self._shares_state else config.state_dir)
        except BaseException:
            self._ports.close()
            raise
        port, grpc_port = (item.getsockname()[1] for item in (self._ports.http, self._ports.grpc))
        self._config = replace(config, port=port, grpc_port=grpc_port)
        self._announcer = announcer
        self._told = asyncio.Event()
        self._told_again = asyncio.Event()
        self._draining = asyncio.Event()
        self._ledger: Ledger = LedgerState(RealClock(), time.time()) if peers is None else peers.ledger
        self._notices: dict[type[Notice], Notice] = {}  # the latest of each kind
        host = EngineHost(
            runtime=self._runtime,
            progress=announcer.progress,
            on_ready=self._engine_is_ready,
            on_gone=self._bury,
            explain=self._explain,
            tell=self._tell,
        )
        self._keepers: list[Keeper] = []
        self._engines = engines(host)
        self._keepers += [self._front_end(place) for place in range(config.frontends)]
        if self._state is not None:
            self._keepers.append(self._batch_worker())

    async def run(self) -> None:
        """Serve until SIGTERM, SIGINT, SIGHUP or a call of Admin.Drain, then drain. A second signal aborts what still runs.

        Raises what keeps the server from starting, or EngineDeadError if the engine cannot be kept running.
        """
        loop, signals = asyncio.get_running_loop(), stop_signals()
        for number in signals:
            loop.add_signal_handler(number, self._on_signal)
        running = [asyncio.create_task(run) for run in (self._engines.run(), *(keeper.run() for keeper in self._keepers))]
        if self._shares_state:
            running.append(asyncio.create_task(self._run_batches_if_nobody_does()))
        keeping = asyncio.create_task(keep(self._runtime, self._moved))
        try:
            try:
                await self._until_told(running)
            except JaxserveError:
                await self._drain(running, 0.0)  # streams that run hear why, and what was used is written down
                raise
            _LOG.info("draining for at most %g s", self._config.drain_timeout)
            await self._drain(running, self._config.drain_timeout)
        finally:
            keeping.cancel()
            await self._end(running)
            for number in signals:
                loop.remove_signal_handler(number)

    async def _until_told(self, running: list[asyncio.Task[None]]) -> None:
        """Say when all are ready, and wait for the signal. Raises what ended a keeper."""
        ready = asyncio.create_task(self._all_are_ready())
        told = asyncio.create_task(self._told.wait())
        try:
            await asyncio.wait((ready, told, *running), return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not told.done():
                warn_without_keys(self._config)  # not before: what keeps the server from starting is told in one line
                self._announcer.ready(self._addresses())
                await asyncio.wait((told, *running), return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                if task.done():
                    task.result()
        finally:
            ready.cancel()
            told.cancel()

    async def _all_are_ready(self) -> None:
        for keeper in self._keepers:
            await keeper.ready.wait()

    async def _drain(self, running: list[asyncio.Task[None]], timeout: float) -> None:
        """Let front ends finish what runs, and the worker keep what is done; the engine goes when they are gone."""
        self._draining.set()
        for keeper in self._keepers:
            keeper.stop()
        ending = asyncio.gather(*running[1:], return_exceptions=True)
        hurrying = asyncio.create_task(self._told_again.wait())
        await asyncio.wait((ending, hurrying), timeout=timeout + KILL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if hurrying.done():
            for keeper in self._keepers:
                keeper.stop()
            await asyncio.wait((ending,), timeout=KILL_SECONDS)
        hurrying.cancel()

    async def _end(self, running: list[asyncio.Task[None]]) -> None:
        for keeper in self._keepers:
            await keeper.kill()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._engines.stop()
        self._ports.close()
        if self._state is not None:
            self._state.close()
        await asyncio.to_thread(self._runtime.remove)

    def _on_signal(self) -> None:
        (self._told_again if self._told.is_set() else self._told).set()

    def _addresses(self) -> Addresses:
        config = self._config
        secure = "s" if config.tls_cert else ""
        return Addresses(
            http=f"http{secure}://{authority(config.host, config.port)}",
            grpc=f"grpc{secure}://{authority(config.host, config.grpc_port)}",
        )

    def _front_end(self, place: int) -> Keeper:
        def recipe(restarts: int) -> Recipe:
            spec = FrontEndSpec(**self._linked(str(place), restarts), http_socket=self._ports.http.fileno())
            return Recipe(spec.name, msgspec.json.encode(spec), (spec.http_socket, *self._inherited()), self._environment())

        return self._keeper("front end", FRONT_END, recipe)

    def _batch_worker(self) -> Keeper:
        def recipe(restarts: int) -> Recipe:
            spec = LinkedSpec(**self._linked("batches", restarts))
            return Recipe(spec.name, msgspec.json.encode(spec), self._inherited(), self._environment())

        return self._keeper("batch worker", BATCHES, recipe)

    async def _run_batches_if_nobody_does(self) -> None:
        """Run the state directory's batches until the drain, once no other server does: one that dies leaves them to others."""
        assert self._config.state_dir is not None
        while self._state is None:
            try:
                self._state = StateLock(Path(self._config.state_dir))
            except StateTakenError:
                if await _set_within(self._draining, TAKE_SECONDS):
                    return
        if self._draining.is_set():
            return
        _LOG.info("this server runs the batches of %s", self._config.state_dir)
        worker = self._batch_worker()
        self._keepers.append(worker)
        for notice in self._notices.values():
            worker.tell(notice)
        await worker.run()

    def _keeper(self, what: str, module: str, recipe: Callable[[int], Recipe]) -> Keeper:
        return Keeper(what, module, recipe, serve=self._answer, engine_up=lambda: self._engines.up, on_gone=self._gone)

    def _linked(self, place: str, restarts: int) -> dict[str, Any]:
        """What every LinkedSpec says."""
        return {
            "name": f"{place}.{restarts}",
            "restarts": restarts,
            "engine": self._engines.target,
            "config": asdict(self._config),
            "metrics": str(self._runtime.metrics),
        }

    def _environment(self) -> dict[str, str]:
        return {METRICS_VARIABLE: str(self._runtime.metrics), **NO_FORK_HANDLERS}

    def _inherited(self) -> tuple[int, ...]:
        """Descriptors for every process that writes to the state directory."""
        return () if self._state is None else (self._state.descriptor,)

    def _answer(self, name: str, request: Request) -> Reply | Orders | Awaitable[Reply] | None:
        if isinstance(request, TrialQuestion):
            return self._engines.answer(name, request)
        if not isinstance(request, DrainServer):
            return self._ledger.handle(request)
        if not self._told.is_set():
            _LOG.info("front end %s was asked to drain the server", name)
        self._told.set()
        return None

    def _engine_is_ready(self, banner: str) -> None:
        self._runtime.note()
        self._announcer.banner(banner)

    def _gone(self, name: str, process_id: int) -> None:
        self._ledger.forget(Forget(name))
        self._engines.process_gone(name)
        self._bury(process_id)

    def _bury(self, process_id: int) -> None:
        with contextlib.suppress(OSError):  # metrics are not worth a server
            remove_process(self._runtime.metrics, process_id)

    def _explain(self, error: JaxserveError, final: bool) -> None:
        self._tell(EngineGone(error, final))

    def _moved(self, failure: OSError | None) -> None:
        """The runtime directory is another, or is lost for the time being."""
        if failure is None:
            self._engines.move()
        lost = f"the engine's socket is lost, and no other can be made: {failure}"
        error = None if failure is None else EngineDeadError(lost)
        self._tell(Home(engine=self._engines.target, metrics=str(self._runtime.metrics), error=error))

    def _tell(self, notice: Notice) -> None:
        self._notices[type(notice)] = notice
        for keeper in self._keepers:
            keeper.tell(notice)


def _take_state(config: ServerConfig) -> StateLock | None:
    """Take the state directory, if there is one, and see that it can be used. Raises ConfigError."""
    if config.state_dir is None:
        return None
    lock = StateLock(Path(config.state_dir))
    try:
        check_store(config)
    except BaseException:
        lock.close()
        raise
    return lock


def check_store(config: ServerConfig) -> None:
    """Raise ConfigError if there is to be a store, and it cannot be used."""
    store = Store.of(config)
    if store is not None:
        store.close()


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def check_ports(config: ServerConfig) -> None:
    """Raise ConfigError for a port or a file that cannot be had: better known before a model is loaded than after."""
    load_tls(config)
    names_of(config.ignore_unsupported)
    check_files(config)
    check_store(config)
    for port, flag in ((config.port, "port"), (config.grpc_port, "grpc_port")):
        bind(config.host, port, flag).close()
    if config.port == config.grpc_port != 0:
        raise ConfigError(f"port and grpc_port are both {config.port}: choose another --grpc-port", param="grpc_port")
