"""What the server says of itself: models, health, version."""

from __future__ import annotations

from fastapi import APIRouter, Request

from jaxserve.adapters.store import AdapterInfo
from jaxserve.engine.calls import FindAdapter, ListAdapters
from jaxserve.engine.client import EngineClient, ModelInfo
from jaxserve.versions import version_of
from server.adapters import AdapterClient
from server.context import RequestContext
from server.http import examples
from server.http.headers import caller_of, client_of, context_of
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
    """List the served models that the caller may use, and the adapters over them."""
    context = context_of(request)
    _, tenant = caller_of(request)
    usable: list[ModelReply] = []
    for one in clients_of(client_of(request)):
        if may_use(one, context):
            usable += [_reply(one.model, name) for name in one.model.names]
        if one.model.takes_adapters:
            usable += [
                _adapter_reply(one.model, info) for info in await one.call(ListAdapters()) if _may_see(context, one, info, tenant)
            ]
    return {"object": "list", "data": usable}


@router.get("/v1/models/{name:path}", responses={**answer(ModelReply, examples.MODEL), **failures(ASKING)}, tags=["model"])
async def model(name: str, request: Request) -> ModelReply:
    """Describe one model, or one adapter."""
    client = served(client_of(request), name, context_of(request))
    if isinstance(client, AdapterClient):
        return _adapter_reply(client.base.model, await client.call(FindAdapter(name, caller_of(request)[1])))
    return _reply(client.model, name)


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
    return {"version": version_of("jaxserve")}


def _reply(info: ModelInfo, name: str) -> ModelReply:
    return {
        "id": name,
        "object": "model",
        "created": info.created,
        "owned_by": "jaxserve",
        "max_model_len": info.max_model_len,
    }


def _may_see(context: RequestContext, base: EngineClient, info: AdapterInfo, tenant: str) -> bool:
    allowed = context.call is None or context.call.may_use((info.name, *base.model.names))
    return allowed and info.tenant in (None, tenant)


def _adapter_reply(base: ModelInfo, info: AdapterInfo) -> ModelReply:
    return {**_reply(base, info.name), "root": info.path, "parent": base.name}
