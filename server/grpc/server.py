"""The gRPC server: every service, health and reflection on one port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from grpc import aio
from grpc_reflection.v1alpha import reflection

from jaxserve.config.server import ServerConfig
from jaxserve.engine.client import EngineClient
from server.gateway.gateway import Gateway
from server.grpc import admin, health, service
from server.grpc.admin import Admin
from server.grpc.gate import Gate
from server.grpc.health import Health
from server.grpc.kserve import service as kserve
from server.grpc.kserve.service import Kserve
from server.grpc.observed import Observed
from server.grpc.service import Inference
from server.grpc.vllm import service as vllm
from server.grpc.vllm.service import VllmEngine
from server.observe.observatory import Observatory
from server.tls import Tls

# Log-probabilities of a prompt of a million tokens.
_MAX_RESPONSE_BYTES = 256 * 2**20

# A ping that stays unanswered for this long ends the connection, and with it what its calls run.
_PING_TIMEOUT_MS = 20_000
# Clients may ping this often, calls or not: gateways do so every 10 to 30 seconds.
_LEAST_PING_INTERVAL_MS = 5_000


class GrpcServer:
    """A grpc.aio server over an engine.

    Args:
        on_drain: starts the shutdown that SIGTERM starts, for Admin.Drain; it may be called more than once.
        share_port: whether other processes listen on the same port, each getting some of the connections.
    """

    def __init__(
        self,
        client: EngineClient,
        config: ServerConfig,
        gateway: Gateway,
        *,
        on_drain: Callable[[], None],
        observatory: Observatory,
        tls: Tls | None = None,
        share_port: bool = False,
    ) -> None:
        interceptors = (Observed(observatory), Gate(gateway, config.unread_timeout))
        self._server = aio.server(interceptors=interceptors, options=_options(config, share_port))
        self._tls = tls
        self._closing = asyncio.Event()
        generating, others = [one.SERVICE.full_name for one in (service, kserve, vllm)], [admin.SERVICE.full_name]
        ready = observatory.check_ready
        self._health = Health(ready, generating, others, self._closing)
        engines = (Inference(client), Kserve(client, ready, observatory.metrics), VllmEngine(client, ready))
        services = (*engines, Admin(client, ready, on_drain, self._closing), self._health)
        self._server.add_generic_rpc_handlers(tuple(one.handler() for one in services))
        names = (*generating, *others, health.SERVICE.full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, address: str) -> int:
        """Listen; returns the port. Raises OSError if the address cannot be had."""
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._tls.grpc_credentials())
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}") from error
        await self._server.start()
        return port

    async def not_serving(self) -> None:
        """Tell health checks to look elsewhere; calls are still answered."""
        self._health.leave()

    async def stop(self, grace: float) -> None:
        """Stop listening; calls that run get `grace` seconds, then are cancelled."""
        self._closing.set()
        await self._server.stop(grace)


def _options(config: ServerConfig, share_port: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.grpc_max_message_mib * 2**20),
        ("grpc.max_send_message_length", _MAX_RESPONSE_BYTES),
        ("grpc.so_reuseport", int(share_port)),  # unasked, a taken port is an error and not a port shared in silence
        ("grpc.keepalive_time_ms", round(config.grpc_keepalive * 1000)),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_INTERVAL_MS),
    ]
