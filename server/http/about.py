"""What the server says of itself: models, health, version."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request

from jaxserve.engine.client import ModelInfo
from server.http import examples
from server.http.headers import client_of, context_of
from server.http.openapi import ASKING, answer, failures
from server.http.replies import HealthReply, ModelListReply, ModelReply, VersionReply
from server.models import clients_of
from server.requests import may_use, served

router = APIRouter()


@router.get(
    "/v1/models",
    responses={**answer(ModelListReply, {"object": "list", "data": [examples.MODEL]}), **failures(ASKING)},
    tags=["model"],
)
async def models(request: Request) -> ModelListReply:
    """List the served models that the caller may use."""
    usable = [one.model for one in clients_of(client_of(request)) if may_use(one, context_of(request))]
    return {"object": "list", "data": [_reply(model, name) for model in usable for name in model.names]}


@router.get("/v1/models/{name:path}", responses={**answer(ModelReply, examples.MODEL), **failures(ASKING)}, tags=["model"])
async def model(name: str, request: Request) -> ModelReply:
    """Describe one model."""
    return _reply(served(client_of(request), name, context_of(request)).model, name)


@router.get(
    "/health",
    responses=answer(HealthReply, {"status": "ok"}),
    tags=["operation"],
)
async def health() -> HealthReply:
    """Tell that this process lives; /ready tells whether requests are accepted."""
    return {"status": "ok"}


@router.get("/ping", responses=answer(HealthReply, {"status": "ok"}), tags=["operation"])
@router.post("/ping", responses=answer(HealthReply, {"status": "ok"}), tags=["operation"])
async def ping() -> HealthReply:
    """The same as /health, for platforms that ask so; a POST needs no body."""
    return {"status": "ok"}


@router.get("/version", responses=answer(VersionReply, {"version": "0.1.0"}), tags=["operation"])
async def server_version() -> VersionReply:
    """Tell the server's version."""
    return {"version": version("jaxserve")}


def _reply(info: ModelInfo, name: str) -> ModelReply:
    return {
        "id": name,
        "object": "model",
        "created": info.created,
        "owned_by": "jaxserve",
        "max_model_len": info.max_model_len,
    }
