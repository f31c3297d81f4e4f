"""How much a server has to do, and what it runs, at the paths of vLLM and SGLang."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request

from jaxserve.engine.client import EngineClient
from server.http import examples
from server.http.openapi import ASKING, answer, failures
from server.http.replies import LoadReply, ServerInfoReply
from server.requests import check_model

router = APIRouter()


@router.get("/load", responses={**answer(LoadReply, examples.LOAD), **failures(ASKING)}, tags=["operation"])
async def load(request: Request) -> LoadReply:
    """Tell the load now; /metrics has more."""
    return _load(request.app.state.client)


@router.get("/server_info", responses={**answer(ServerInfoReply, examples.SERVER_INFO), **failures(ASKING)}, tags=["operation"])
@router.get("/get_server_info", include_in_schema=False)
async def server_info(request: Request) -> ServerInfoReply:
    """Tell what is served, by which version, and the load. Settings and paths are not told."""
    client: EngineClient = request.app.state.client
    check_model(client, None)
    model = client.model
    return {
        "version": version("jaxserve"),
        "served_model_name": model.name,
        "served_model_names": list(model.names),
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
