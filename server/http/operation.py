"""What operators and their machines ask of a running server: load, cache, metrics, readiness, one token, a trace."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from jaxserve.engine.calls import KVEventSources, Trace
from jaxserve.engine.client import EngineClient
from jaxserve.errors import ErrorCode
from jaxserve.metrics.chrome_trace import chrome_trace
from jaxserve.metrics.exposition import CONTENT_TYPE
from jaxserve.metrics.timeline import TimelineWindow
from jaxserve.versions import version_of
from server.http import examples
from server.http.headers import context_of
from server.http.openapi import ASKING, answer, failures
from server.http.replies import DeepHealthReply, HealthReply, KVEventSourceReply, LoadReply, ServerInfoReply
from server.models import clients_of
from server.observe.deep_health import DeepHealth
from server.observe.observatory import Observatory
from server.requests import served

router = APIRouter(tags=["operation"])

_NOT_READY = (ErrorCode.DRAINING, ErrorCode.ENGINE_DEAD)
_MAX_SECONDS = 600.0


@router.get("/load", responses={**answer(LoadReply, examples.LOAD), **failures(ASKING)})
async def load(request: Request) -> LoadReply:
    """Tell the load now; /metrics has more."""
    return _load(request.app.state.client)


@router.get("/server_info", responses={**answer(ServerInfoReply, examples.SERVER_INFO), **failures(ASKING)})
@router.get("/get_server_info", include_in_schema=False)
async def server_info(request: Request) -> ServerInfoReply:
    """Tell what is served, by which version, and the load. Settings and paths are not told."""
    client: EngineClient = request.app.state.client
    model = served(client, None, context_of(request)).model
    return {
        "version": version_of("jaxserve"),
        "served_model_name": model.name,
        "served_model_names": [name for one in clients_of(client) for name in one.model.names],
        "architecture": model.architecture,
        "dtype": model.dtype,
        "parameters": model.parameters,
        "vocab_size": model.vocab_size,
        "max_model_len": model.max_model_len,
        "created": model.created,
        "load": _load(client),
    }


def _load(client: EngineClient) -> LoadReply:
    stats = client.stats()
    return {
        "server_load": stats.active,
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_cache_usage": 1.0 - stats.pages_free / stats.pages_total if stats.pages_total else 0.0,
    }


@router.get("/kv_event_sources", responses={**answer(list[KVEventSourceReply], [examples.KV_EVENT_SOURCE]), **failures(ASKING)})
async def kv_event_sources(request: Request) -> list[KVEventSourceReply]:
    """List the ZeroMQ endpoints at which engines publish what their prefix caches hold; none unless they were told to."""
    client: EngineClient = request.app.state.client
    return [
        {
            "data_parallel_rank": one.data_parallel_rank,
            "endpoint": one.endpoint,
            "replay_endpoint": one.replay_endpoint,
            "topic": one.topic,
        }
        for one in await client.call(KVEventSources())
    ]


@router.post(
    "/reset_prefix_cache",
    response_class=Response,
    responses={200: {"description": "done"}, **failures(ASKING)},
)
async def reset_prefix_cache(request: Request) -> Response:
    """Forget every cached prefix, pinned ones too; what runs goes on. An empty 200, as vLLM answers."""
    client: EngineClient = request.app.state.client
    await client.reset_prefix_cache()
    return Response()


@router.get(
    "/metrics",
    responses={200: {"description": "metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}},
    response_class=Response,
)
async def metrics(request: Request) -> Response:
    """Prometheus metrics of all processes of this server."""
    observatory: Observatory = request.app.state.observatory
    return Response(await observatory.metrics(), media_type=CONTENT_TYPE)


@router.get("/ready", responses={**answer(HealthReply, {"status": "ok"}), **failures(_NOT_READY)})
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
)
async def trace(
    request: Request,
    seconds: Annotated[float, Query(gt=0.0, le=_MAX_SECONDS, description="how far back, as far as it is kept (a minute)")] = 10.0,
) -> Response:
    """What the engine did in the last seconds, as a trace for https://ui.perfetto.dev: steps, their phases, requests, load."""
    client: EngineClient = request.app.state.client
    content = await asyncio.to_thread(_trace, await client.call(Trace(seconds)))
    return Response(content, media_type="application/json", headers={"Content-Disposition": 'attachment; filename="trace.json"'})


def _trace(window: TimelineWindow) -> bytes:
    events: dict[str, Any] = chrome_trace(window)
    return msgspec.json.encode(events)
