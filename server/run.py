"""Both servers on one event loop: start, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn

from jaxserve.config.server import ServerConfig
from jaxserve.engine.client import EngineClient
from jaxserve.metrics.instruments import Instruments
from server.feed.hub import EngineFeeds
from server.gateway.gateway import Gateway, warn_without_keys
from server.grpc.server import GrpcServer
from server.http.app import create_app
from server.http.connections import Connection, ConnectionLimits, connections
from server.http.storage import Storage
from server.observe.observatory import Observatory
from server.ports import Addresses, authority, bind, taken
from server.tls import load_tls

# After the drain nothing runs in the engine: what is left is the last bytes on their way to clients.
_CLOSE_SECONDS = 2

_TICKS = 10  # of uvicorn a second


async def serve(client: EngineClient, config: ServerConfig, on_ready: Callable[[Addresses], None]) -> None:
    """Serve an engine until SIGTERM, SIGINT or a call of Admin.Drain; see `run_servers`.

    Raises ConfigError if a port is taken, or TLS cannot be had.
    """
    await run_servers(Servers(client, config), on_ready)


async def run_servers(servers: Servers, on_ready: Callable[[Addresses], None]) -> None:
    """Serve until SIGTERM, SIGINT or a call of Admin.Drain, then drain. A second signal aborts what still runs.

    Raises ConfigError if a port is taken.
    """
    first, second = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (second if first.is_set() else first).set()
        servers.drain_asked.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        on_ready(await servers.start())
        await servers.drain_asked.wait()
        await servers.stop(hurry=second)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


class Servers:
    """The HTTP and the gRPC server of one engine. Raises ConfigError if TLS or the state directory cannot be had.

    Args:
        observatory: watches them; by default one whose metrics are these servers' alone.
        gateway: lets calls in; by default one with a ledger of its own.
        http_socket: where HTTP listens; by default a socket of its own at the port of `config`.
        share_grpc_port: whether other processes listen on the gRPC port too.

    Attributes:
        drain_asked: set by a call of Admin.Drain; whoever runs the servers is to stop them.
    """

    def __init__(
        self,
        client: EngineClient,
        config: ServerConfig,
        observatory: Observatory | None = None,
        *,
        gateway: Gateway | None = None,
        http_socket: socket.socket | None = None,
        share_grpc_port: bool = False,
    ) -> None:
        self._client = client
        self._config = config
        self._tls = load_tls(config)
        self.drain_asked = asyncio.Event()
        if gateway is None:
            warn_without_keys(config)
        self._gateway = gateway or Gateway.open(config)
        self._http_socket = http_socket
        self._storage = Storage.of(config)
        self._observatory = observatory or Observatory(client, config, Instruments())
        self._grpc = GrpcServer(
            client,
            config,
            self._gateway,
            on_drain=self.drain_asked.set,
            observatory=self._observatory,
            tls=self._tls,
            share_port=share_grpc_port,
        )
        self._feeds = EngineFeeds(client)
        self._http = _HttpServer(
            uvicorn.Config(
                create_app(client, self._gateway, self._observatory, config, self._storage, self._feeds),
                lifespan="off",
                ws="none",
                workers=1,  # otherwise uvicorn reads WEB_CONCURRENCY, which hosting platforms set
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_CLOSE_SECONDS,
                timeout_keep_alive=math.ceil(config.http_keepalive),
                http=cast(type[Connection], connections(ConnectionLimits.of(config))),
                **(self._tls.http_settings() if self._tls else {}),
            )
        )
        self._http_task: asyncio.Task[None] | None = None

    async def start(self) -> Addresses:
        """Listen on both ports. Raises ConfigError if one is taken."""
        config = self._config
        listener = self._http_socket or bind(config.host, config.port, "port")
        try:
            grpc_port = await self._grpc.start(authority(config.host, config.grpc_port))
        except OSError as error:
            listener.close()
            raise taken(config.host, config.grpc_port, "grpc_port", error) from error
        # The next server is to get the port although connections of this one linger.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        http_port = listener.getsockname()[1]
        self._http_task = asyncio.create_task(self._http.serve(sockets=[listener]))
        await self._http.listening.wait()
        secure = "s" if self._tls else ""
        return Addresses(
            http=f"http{secure}://{authority(config.host, http_port)}",
            grpc=f"grpc{secure}://{authority(config.host, grpc_port)}",
        )

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Drain the engine, then close both servers. Setting `hurry` aborts what still runs."""
        await self._grpc.not_serving()
        self._feeds.close()
        await self._drain(hurry or asyncio.Event())
        self._http.should_exit = True
        await self._grpc.stop(_CLOSE_SECONDS)
        if self._http_task is not None:
            await self._http_task
        self._gateway.close()
        if self._storage is not None:
            await asyncio.to_thread(self._storage.close)
        await self._observatory.close()

    async def _drain(self, hurry: asyncio.Event) -> None:
        draining = asyncio.create_task(self._client.drain(self._config.drain_timeout))
        hurrying = asyncio.create_task(hurry.wait())
        await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if not draining.done():
            draining.cancel()
            await asyncio.wait((draining,))
            await self._client.drain(0.0)
        else:
            draining.result()


class _HttpServer(uvicorn.Server):
    """uvicorn that leaves signals to us, says when it listens, and looks after its connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._looked_at: list[Connection] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: look at a tenth of the connections, or ten thousand of them would hold up a step's tokens."""
        part = counter % _TICKS
        if part == 0:
            self._looked_at = [one for one in self.server_state.connections if isinstance(one, Connection)]
        now = asyncio.get_running_loop().time()
        for connection in self._looked_at[part::_TICKS]:
            connection.check(now)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
