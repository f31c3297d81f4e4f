"""Weights from another process: vLLM's life cycle of an update, whose pieces are bodies in the format of safetensors.

As for all that `rollouts` has, it needs an admin key.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope

from jaxserve.engine.calls import (
    CloseTransfer,
    FinishUpdate,
    OpenTransfer,
    PutPiece,
    ResetWeights,
    StartUpdate,
    WeightSums,
    WorldSize,
)
from jaxserve.engine.control import SentAdapter, SentMapping
from jaxserve.engine.pause import PauseMode
from jaxserve.errors import InvalidRequestError
from server.http.headers import client_of
from server.http.rollouts import StrictBody, Version, WeightReply, require_keys, told, updated
from server.http.strict_json import StrictJsonRoute

PIECE_TYPE = "application/octet-stream"


class _PieceRoute(APIRoute):
    """Takes requests whose body is a piece; others of its path are another route's."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
        return super().matches(scope) if kind == PIECE_TYPE else (Match.NONE, {})


pieces = APIRouter(route_class=_PieceRoute, include_in_schema=False, dependencies=[Depends(require_keys)])
router = APIRouter(route_class=StrictJsonRoute, include_in_schema=False, dependencies=[Depends(require_keys)])


class StartedReply(WeightReply):
    """With what pieces must name."""

    update_id: str


class InitInfo(StrictBody):
    """How weights come: by HTTP alone."""

    backend: Literal["http"] = "http"


class InitTransfer(StrictBody):
    init_info: InitInfo = Field(default_factory=InitInfo)


@router.post("/init_weight_transfer_engine")
async def init_weight_transfer_engine(request: Request, body: InitTransfer | None = None) -> WeightReply:
    """Take updates from now on; what has come of one before is dropped."""
    return told(await client_of(request).call(OpenTransfer()))


class StartWeightUpdate(StrictBody):
    """All arrays of the update: names, dtypes and shapes, one each."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    mapping: SentMapping = "auto"
    partial: bool = False
    is_checkpoint_format: Literal[True] = True


@router.post("/start_weight_update")
async def start_weight_update(request: Request, body: StartWeightUpdate) -> StartedReply:
    """Announce an update. Names, shapes and dtypes are checked before any array comes."""
    return await _started(request, body, draft=False)


@router.post("/start_draft_weight_update")
async def start_draft_weight_update(request: Request, body: StartWeightUpdate) -> StartedReply:
    """The same for the draft model of speculative decoding."""
    return await _started(request, body, draft=True)


class StartAdapterUpdate(StrictBody):
    """All arrays of an adapter, and what its adapter_config.json would say."""

    lora_name: str
    lora_config: dict[str, Any]
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    mapping: SentMapping = "auto"
    load_inplace: bool = False
    tenant: str | None = None


@router.post("/start_adapter_update")
async def start_adapter_update(request: Request, body: StartAdapterUpdate) -> StartedReply:
    """The same for an adapter; the model's weights stay as they are."""
    adapter = SentAdapter(body.lora_name, body.lora_config, body.tenant, body.load_inplace)
    update_id = uuid.uuid4().hex
    return await _announced(
        request, StartUpdate(update_id, body.names, body.dtype_names, body.shapes, body.mapping, adapter=adapter)
    )


async def _started(request: Request, body: StartWeightUpdate, *, draft: bool) -> StartedReply:
    update_id = uuid.uuid4().hex
    arrays = body.names, body.dtype_names, body.shapes
    return await _announced(request, StartUpdate(update_id, *arrays, body.mapping, body.partial, draft))


async def _announced(request: Request, call: StartUpdate) -> StartedReply:
    return {**told(await updated(request, call)), "update_id": call.update_id}


@pieces.post("/update_weights")
async def put_piece(request: Request, update_id: Annotated[str, Query()]) -> WeightReply:
    """Keep some arrays, or parts of them; the old weights are served on."""
    return told(await client_of(request).call(PutPiece(update_id, await request.body())))


class FinishWeightUpdate(StrictBody):
    """vLLM's `weight_version`, and what jaxserve's other updates are told."""

    weight_version: Version | None = None
    update_id: str | None = None
    mode: PauseMode = "wait"
    force: bool = False


@router.post("/finish_weight_update")
async def finish_weight_update(request: Request, body: FinishWeightUpdate | None = None) -> WeightReply:
    """Check what has come and serve it; answered when it is served."""
    body = body or FinishWeightUpdate()
    return told(await updated(request, FinishUpdate(body.update_id, body.weight_version, body.mode, body.force)))


@router.post("/shutdown_weight_transfer_engine")
async def shutdown_weight_transfer_engine(request: Request) -> WeightReply:
    """Take no more updates, and drop what has come of one."""
    return told(await client_of(request).call(CloseTransfer()))


class CheckWeights(StrictBody):
    action: Literal["checksum", "reset", "compare"]
    baseline: dict[str, str] | None = None


@router.post("/weight_checker")
async def weight_checker(request: Request, body: CheckWeights) -> dict[str, Any]:
    """SHA-256 of the weights as every device holds them, what differs from a baseline of these, or zeros in their place."""
    client = client_of(request)
    if (body.action == "compare") != (body.baseline is not None):
        raise InvalidRequestError("baseline must be given to compare, and only then", param="baseline")
    if body.action == "reset":
        await client.call(ResetWeights())
        return {"status": "reset"}
    engines = await client.call(WeightSums())
    sums = {f"dp{number}:{name}": one for number, engine in enumerate(engines) for name, one in engine.items()}
    if body.baseline is None:
        return {"checksums": sums}
    mismatches = sorted(name for name in sums.keys() | body.baseline.keys() if sums.get(name) != body.baseline.get(name))
    return {"match": not mismatches, "mismatches": mismatches}


@router.get("/get_world_size")
async def get_world_size(request: Request, include_dp: bool = True) -> dict[str, int]:
    """Devices that have weights: of all engines, or of one."""
    sizes = await client_of(request).call(WorldSize())
    return {"world_size": sum(sizes) if include_dp else sizes[0]}
