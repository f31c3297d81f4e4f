"""The gRPC server: the service, health and reflection on one port."""

from __future__ import annotations

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from jaxserve.engine.client import EngineClient
from server.grpc.service import SERVICE_NAME, Inference

# Room for a prompt of a million token ids, and for its log-probabilities on the way back.
_MAX_REQUEST_BYTES = 16 * 2**20
_MAX_RESPONSE_BYTES = 256 * 2**20

_OPTIONS = [
    ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", _MAX_RESPONSE_BYTES),
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a port shared in silence
]


class GrpcServer:
    """A grpc.aio server over an engine."""

    def __init__(self, client: EngineClient) -> None:
        self._server = aio.server(options=_OPTIONS)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # missing in the stubs
        self._server.add_generic_rpc_handlers((Inference(client).handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    async def start(self, address: str) -> int:
        """Listen; returns the port. Raises OSError if the address cannot be had."""
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}") from error
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()
        return port

    async def not_serving(self) -> None:
        """Tell health checks to look elsewhere; calls are still answered."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace: float) -> None:
        """Stop listening; calls that run get `grace` seconds, then are cancelled."""
        await self._server.stop(grace)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)
