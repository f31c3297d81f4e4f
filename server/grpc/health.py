"""grpc.health.v1.Health: what this server can do now, asked of the engine at every check."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2 as pb

from jaxserve.errors import JaxserveError
from server.grpc.calls import GrpcCall, service, streaming, unary

SERVICE = pb.DESCRIPTOR.services_by_name["Health"]
_Status = pb.HealthCheckResponse

# Between two looks for those that watch: soon enough for a balancer, and nothing to an engine that is not even asked.
_WATCH_SECONDS = 0.25


class Health:
    """Answers for every service by name, and for the whole server by the empty name.

    Args:
        generating: services that run requests; they and the whole server stop serving with the engine.
        others: services that serve as long as the server runs.
        closing: set when the server is about to end.
    """

    def __init__(
        self, ready: Callable[[], None], generating: Collection[str], others: Collection[str], closing: asyncio.Event
    ) -> None:
        self._ready = ready
        self._generating = frozenset({"", *generating})
        self._others = frozenset(others)
        self._closing = closing
        self._leaving = False

    def leave(self) -> None:
        """Send balancers elsewhere from now on, whatever the engine says."""
        self._leaving = True

    def status(self, name: str) -> pb.HealthCheckResponse.ServingStatus:
        """The status now; SERVICE_UNKNOWN for a service that is not here."""
        if name in self._others:
            return _Status.SERVING
        if name not in self._generating:
            return _Status.SERVICE_UNKNOWN
        return _Status.SERVING if not self._leaving and accepts(self._ready) else _Status.NOT_SERVING

    async def check(self, request: pb.HealthCheckRequest, call: GrpcCall) -> pb.HealthCheckResponse:
        status = self.status(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            await call.end(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service[:100]!r} here")
        return pb.HealthCheckResponse(status=status)

    async def watch(self, request: pb.HealthCheckRequest, call: GrpcCall) -> AsyncGenerator[pb.HealthCheckResponse, None]:
        """The status now and at every change, until the server ends."""
        last = None
        while True:
            status = self.status(request.service)
            if status != last:
                yield pb.HealthCheckResponse(status=status)
                last = status
            if await passed(self._closing, _WATCH_SECONDS):
                return

    def handler(self) -> grpc.GenericRpcHandler[bytes, Message]:
        return service(
            SERVICE,
            {"Check": unary(pb.HealthCheckRequest, self.check), "Watch": streaming(pb.HealthCheckRequest, self.watch)},
        )


def accepts(ready: Callable[[], None]) -> bool:
    """Whether requests are accepted and the engine's loop turns. `ready` raises a JaxserveError where not."""
    try:
        ready()
    except JaxserveError:
        return False
    return True


async def passed(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, but no longer than this; whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
