"""What the server says of itself: models, health, version."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request

from jaxserve.engine.client import EngineClient, ModelInfo
from server.errors import ErrorBody
from server.http.replies import HealthReply, ModelListReply, ModelReply, VersionReply
from server.requests import check_model

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> ModelListReply:
    """List the served models."""
    client: EngineClient = request.app.state.client
    return {"object": "list", "data": [_reply(client.model)]}


@router.get("/v1/models/{name:path}", responses={"4XX": {"model": ErrorBody}})
async def model(name: str, request: Request) -> ModelReply:
    """Describe one model."""
    client: EngineClient = request.app.state.client
    check_model(client, name)
    return _reply(client.model)


@router.get("/health", responses={503: {"model": ErrorBody}})
async def health(request: Request) -> HealthReply:
    """Tell whether requests are accepted."""
    client: EngineClient = request.app.state.client
    client.check_health()
    return {"status": "ok"}


@router.get("/version")
async def server_version() -> VersionReply:
    """Tell the server's version."""
    return {"version": version("jaxserve")}


def _reply(info: ModelInfo) -> ModelReply:
    return {
        "id": info.name,
        "object": "model",
        "created": info.created,
        "owned_by": "jaxserve",
        "max_model_len": info.max_model_len,
    }
