"""jaxserve.v1.Admin: what operators see of a running server and do to it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable

import grpc
from google.protobuf.message import Message

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InvalidRequestError
from jaxserve.proto import admin_pb2 as pb
from server.grpc.calls import GrpcCall, service, streaming, unary
from server.grpc.health import accepts, passed

SERVICE = pb.DESCRIPTOR.services_by_name["Admin"]

_DEFAULT_INTERVAL = 1.0  # seconds
_LEAST_INTERVAL = 0.01


class Admin:
    """The service's methods.

    Args:
        on_drain: starts the shutdown that SIGTERM starts; it may be called more than once.
        closing: set when the server is about to end.
    """

    def __init__(
        self, client: EngineClient, ready: Callable[[], None], on_drain: Callable[[], None], closing: asyncio.Event
    ) -> None:
        self._client = client
        self._ready = ready
        self._on_drain = on_drain
        self._closing = closing

    async def get_load(self, request: pb.GetLoadRequest, call: GrpcCall) -> pb.Load:
        return load_of(self._client, self._ready)

    async def watch_load(self, request: pb.WatchLoadRequest, call: GrpcCall) -> AsyncGenerator[pb.Load, None]:
        """The load now and at every interval, until the server ends."""
        interval = request.interval if request.HasField("interval") else _DEFAULT_INTERVAL
        if not _LEAST_INTERVAL <= interval < math.inf:
            raise InvalidRequestError(f"interval must be at least {_LEAST_INTERVAL} and finite, got {interval}", param="interval")
        yield load_of(self._client, self._ready)
        while not await passed(self._closing, interval):
            yield load_of(self._client, self._ready)

    async def drain(self, request: pb.DrainRequest, call: GrpcCall) -> pb.DrainResponse:
        self._on_drain()
        return pb.DrainResponse()

    async def flush_prefix_cache(self, request: pb.FlushPrefixCacheRequest, call: GrpcCall) -> pb.FlushPrefixCacheResponse:
        await self._client.reset_prefix_cache()
        return pb.FlushPrefixCacheResponse()

    def handler(self) -> grpc.GenericRpcHandler[bytes, Message]:
        return service(
            SERVICE,
            {
                "GetLoad": unary(pb.GetLoadRequest, self.get_load),
                "WatchLoad": streaming(pb.WatchLoadRequest, self.watch_load),
                "Drain": unary(pb.DrainRequest, self.drain),
                "FlushPrefixCache": unary(pb.FlushPrefixCacheRequest, self.flush_prefix_cache),
            },
        )


def load_of(client: EngineClient, ready: Callable[[], None]) -> pb.Load:
    stats = client.stats()
    return pb.Load(
        accepting=accepts(ready),
        running=stats.running,
        waiting=stats.waiting,
        pages_total=stats.pages_total,
        pages_free=stats.pages_free,
        received=stats.received,
        active=stats.active,
        finished=stats.finished,
        aborted=stats.aborted,
        rejected=stats.rejected,
        preemptions=stats.preemptions,
        lost_tokens=stats.lost_tokens,
        prefix_queried_tokens=stats.prefix_queried_tokens,
        prefix_hit_tokens=stats.prefix_hit_tokens,
    )
