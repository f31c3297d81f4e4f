"""Adapters come and go while the server serves: vLLM's routes.

Whoever may do this may make the server read directories of its machine: it needs an admin key, and a server that has keys.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict

from jaxserve.adapters.store import AdapterInfo
from jaxserve.engine.calls import LoadAdapter, UnloadAdapter
from jaxserve.engine.client import EngineClient
from jaxserve.errors import CheckpointError, InvalidRequestError
from server.http.headers import client_of
from server.http.openapi import ASKING, answer, failures
from server.http.replies import AdapterReply
from server.http.rollouts import require_keys
from server.http.strict_json import StrictJsonRoute
from server.models import adapter_base

router = APIRouter(route_class=StrictJsonRoute, tags=["operation"], dependencies=[Depends(require_keys)])

_EXAMPLE: AdapterReply = {
    "lora_name": "tenant-a",
    "lora_path": "/adapters/tenant-a",
    "base_model_name": "llama-3-8b",
    "rank": 16,
    "modules": 224,
    "tenant": None,
    "pinned": False,
}


class LoadBody(BaseModel):
    """An adapter as PEFT saves one, in a directory of the machine on which the engine runs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    tenant: str | None = None
    pin: bool = False


class UnloadBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    lora_name: str
    lora_int_id: int | None = None  # vLLM's number, which names make needless


@router.post("/v1/load_lora_adapter", responses={**answer(AdapterReply, _EXAMPLE), **failures(ASKING)})
async def load_lora_adapter(body: LoadBody, request: Request) -> AdapterReply:
    """Read an adapter; requests may name it as their model from then on, those of one tenant only if it is a tenant's.

    With load_inplace it may take the place of another of the same name: requests that run go on with that one.
    """
    call = LoadAdapter(body.lora_name, body.lora_path, body.tenant, body.load_inplace, body.pin)
    try:
        return _reply(await _base(request).call(call))
    except CheckpointError as error:  # it was the request that named it
        raise InvalidRequestError(error.message, param="lora_path") from error


@router.post("/v1/unload_lora_adapter", responses={**answer(AdapterReply, _EXAMPLE), **failures(ASKING)})
async def unload_lora_adapter(body: UnloadBody, request: Request) -> AdapterReply:
    """Let no request name an adapter any more; those that run finish."""
    return _reply(await _base(request).call(UnloadAdapter(body.lora_name)))


def _base(request: Request) -> EngineClient:
    """The client of the model that takes adapters; that of any, which says so, if none does."""
    client = client_of(request)
    return adapter_base(client) or client


def _reply(info: AdapterInfo) -> AdapterReply:
    return {
        "lora_name": info.name,
        "lora_path": info.path,
        "base_model_name": info.base_model,
        "rank": info.rank,
        "modules": info.modules,
        "tenant": info.tenant,
        "pinned": info.pinned,
    }
