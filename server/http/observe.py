"""What machines ask of a running server: metrics, readiness, one token, a trace."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from jaxserve.engine.calls import TRACE
from jaxserve.engine.client import EngineClient
from jaxserve.errors import ErrorCode
from jaxserve.metrics.chrome_trace import chrome_trace
from jaxserve.metrics.exposition import CONTENT_TYPE
from jaxserve.metrics.timeline import TimelineWindow
from server.http.openapi import ASKING, answer, failures
from server.http.replies import DeepHealthReply, HealthReply
from server.observe.deep_health import DeepHealth
from server.observe.observatory import Observatory

router = APIRouter()

_NOT_READY = (ErrorCode.DRAINING, ErrorCode.ENGINE_DEAD)
_MAX_SECONDS = 600.0


@router.get(
    "/metrics",
    responses={200: {"description": "metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}},
    response_class=Response,
    tags=["operation"],
)
async def metrics(request: Request) -> Response:
    """Prometheus metrics of all processes of this server."""
    observatory: Observatory = request.app.state.observatory
    return Response(await observatory.metrics(), media_type=CONTENT_TYPE)


@router.get("/ready", responses={**answer(HealthReply, {"status": "ok"}), **failures(_NOT_READY)}, tags=["operation"])
async def ready(request: Request) -> HealthReply:
    """Tell whether requests are accepted and the engine's loop turns."""
    observatory: Observatory = request.app.state.observatory
    observatory.check_ready()
    return {"status": "ok"}


@router.get(
    "/health/deep",
    responses={
        **answer(DeepHealthReply, {"status": "ok", "seconds": 0.012, "age": 0.0}),
        **failures((ErrorCode.QUEUE_FULL, ErrorCode.OVERLOADED, ErrorCode.DEADLINE_EXCEEDED, ErrorCode.INTERNAL, *_NOT_READY)),
    },
    tags=["operation"],
)
async def deep_health(request: Request) -> DeepHealthReply:
    """Generate one token. Asked again within seconds, it tells what came of the last time; not ready is said at once."""
    observatory: Observatory = request.app.state.observatory
    observatory.check_ready()
    deep: DeepHealth = request.app.state.deep_health
    seconds, age = await deep.check()
    return {"status": "ok", "seconds": seconds, "age": age}


@router.get(
    "/debug/trace",
    responses={
        200: {"description": "a trace", "content": {"application/json": {"schema": {"type": "object"}}}},
        **failures(ASKING),
    },
    response_class=Response,
    tags=["operation"],
)
async def trace(
    request: Request,
    seconds: Annotated[float, Query(gt=0.0, le=_MAX_SECONDS, description="how far back, as far as it is kept (a minute)")] = 10.0,
) -> Response:
    """What the engine did in the last seconds, as a trace for https://ui.perfetto.dev: steps, their phases, requests, load."""
    client: EngineClient = request.app.state.client
    content = await asyncio.to_thread(_trace, await client.call(TRACE, repr(seconds).encode()))
    return Response(content, media_type="application/json", headers={"Content-Disposition": 'attachment; filename="trace.json"'})


def _trace(window: bytes) -> bytes:
    events: dict[str, Any] = chrome_trace(msgspec.msgpack.decode(window, type=TimelineWindow))
    return msgspec.json.encode(events)
