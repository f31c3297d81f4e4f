"""What trainers ask of a server between two steps of theirs, in the words of vLLM and of SGLang: pause, update, sleep.

Whoever may do this may make the server load any checkpoint of its machine: it needs an admin key, and a server that has keys.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from jaxserve.engine.calls import (
    AbortAll,
    EngineCall,
    Info,
    NameWeights,
    PauseEngine,
    Resume,
    SleepEngine,
    UpdateFromDisk,
    WakeUp,
)
from jaxserve.engine.control import WeightInfo
from jaxserve.engine.pause import PauseMode
from jaxserve.errors import CheckpointError, ConfigError, InvalidRequestError, JaxserveError, PermissionDeniedError
from server.errors import OUTCOMES
from server.http.headers import client_of
from server.http.strict_json import StrictJsonRoute

_TAGS = {"weights", "kv_cache"}
_SGLANG_MODES: dict[str, PauseMode] = {"abort": "abort", "in_place": "keep"}


def require_keys(request: Request) -> None:
    if not request.app.state.has_keys:
        raise PermissionDeniedError("this needs a server with API keys, and one of them with admin = true")


router = APIRouter(route_class=StrictJsonRoute, include_in_schema=False, dependencies=[Depends(require_keys)])


class StrictBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class WeightReply(TypedDict):
    """What is served: `weight_version` is null for weights that nobody named; and what has come of an update that is sent."""

    weight_version: int | str | None
    fingerprint: str
    is_paused: bool
    is_sleeping: bool
    asleep: str | None
    received_bytes: int
    wanted_bytes: int


class SglangReply(TypedDict):
    """What came of it, as SGLang tells it."""

    success: bool
    message: str


def told(info: WeightInfo) -> WeightReply:
    return {
        "weight_version": info.version,
        "fingerprint": info.fingerprint,
        "is_paused": info.is_paused,
        "is_sleeping": info.asleep is not None,
        "asleep": info.asleep,
        "received_bytes": info.received_bytes,
        "wanted_bytes": info.wanted_bytes,
    }


@router.post("/pause")
async def pause(request: Request, mode: Annotated[PauseMode, Query()] = "abort", clear_cache: bool = True) -> WeightReply:
    """Run nothing until /resume; what comes meanwhile waits."""
    return told(await client_of(request).call(PauseEngine(mode, clear_cache)))


@router.post("/resume")
async def resume(request: Request) -> WeightReply:
    return told(await client_of(request).call(Resume()))


@router.get("/is_paused")
async def is_paused(request: Request) -> dict[str, bool]:
    return {"is_paused": (await client_of(request).call(Info())).is_paused}


class AbortRequests(StrictBody):
    """vLLM's, for all requests: ids are for the endpoint that needs no admin key."""

    request_ids: list[str] | None = None


@router.post("/abort_requests")
async def abort_requests(request: Request, body: AbortRequests | None = None) -> dict[str, list[str]]:
    """End all requests as aborted."""
    if body is not None and body.request_ids is not None:
        raise InvalidRequestError(
            "request_ids: single requests are ended by /inference/v1/abort_requests; leave it out to end all", param="request_ids"
        )
    await client_of(request).call(AbortAll())
    return {"aborted": []}


async def updated(request: Request, call: EngineCall[WeightInfo]) -> WeightInfo:
    """Raises InvalidRequestError for weights that are not there, or do not fit: it was the request that named them."""
    try:
        return await client_of(request).call(call)
    except (CheckpointError, ConfigError) as error:
        raise InvalidRequestError(error.message, param=error.param) from error


Version = int | Annotated[str, Field(max_length=256)]


class UpdateInfo(StrictBody):
    """A checkpoint where the engine runs."""

    path: str
    mode: PauseMode = "wait"
    weight_version: Version | None = None
    force: bool = False


class UpdateWeights(StrictBody):
    update_info: UpdateInfo


@router.post("/update_weights")
async def update_weights(request: Request, body: UpdateWeights) -> WeightReply:
    """Serve the weights of a checkpoint of the same model; answered when they are served."""
    info = body.update_info
    return told(await updated(request, UpdateFromDisk(info.path, info.weight_version, info.mode, info.force)))


@router.get("/weight_info")
async def weight_info(request: Request) -> WeightReply:
    return told(await client_of(request).call(Info()))


class NewVersion(StrictBody):
    new_version: Version


@router.post("/update_weight_version")
async def update_weight_version(request: Request, body: NewVersion) -> WeightReply:
    """Say what the weights are called that are served."""
    return told(await client_of(request).call(NameWeights(body.new_version)))


@router.post("/sleep")
async def sleep(request: Request, level: int = 1) -> WeightReply:
    return told(await client_of(request).call(SleepEngine(level)))


@router.post("/wake_up")
async def wake_up(request: Request, tags: Annotated[list[str] | None, Query()] = None) -> WeightReply:
    return told(await client_of(request).call(WakeUp(None if tags is None else tuple(tags))))


@router.get("/is_sleeping")
async def is_sleeping(request: Request) -> dict[str, bool]:
    return {"is_sleeping": (await client_of(request).call(Info())).asleep is not None}


class FromDisk(StrictBody):
    """SGLang's, with what it sends by default."""

    model_path: str
    load_format: Literal["auto"] | None = None
    abort_all_requests: bool = False
    weight_version: Version | None = None
    is_async: Literal[False] = False
    torch_empty_cache: Literal[False] = False
    keep_pause: Literal[False] = False
    recapture_cuda_graph: Literal[False] = False
    token_step: Literal[0] = 0
    flush_cache: Literal[True] = True


@router.post("/update_weights_from_disk")
async def update_weights_from_disk(request: Request, body: FromDisk, response: Response) -> SglangReply:
    """Serve the weights of a checkpoint; what runs is waited for unless it is to be aborted."""
    mode: PauseMode = "abort" if body.abort_all_requests else "wait"
    try:
        info = await updated(request, UpdateFromDisk(body.model_path, body.weight_version, mode))
    except JaxserveError as error:
        response.status_code = OUTCOMES[error.code].http
        if error.retry_after is not None:
            response.headers["retry-after"] = str(math.ceil(error.retry_after))
        return {"success": False, "message": error.message}
    return {"success": True, "message": f"weights of version {info.version} are served"}


class PauseGeneration(StrictBody):
    mode: Literal["abort", "retract", "in_place"] = "abort"


@router.post("/pause_generation")
async def pause_generation(request: Request, body: PauseGeneration | None = None) -> WeightReply:
    mode = "abort" if body is None else body.mode
    if mode not in _SGLANG_MODES:
        raise InvalidRequestError(f"mode {mode!r} is not supported; there are {', '.join(_SGLANG_MODES)}", param="mode")
    return told(await client_of(request).call(PauseEngine(_SGLANG_MODES[mode], clear_cache=False)))


@router.post("/continue_generation")
async def continue_generation(request: Request) -> WeightReply:
    return await resume(request)


class MemoryTags(StrictBody):
    tags: list[str] | None = None


@router.post("/release_memory_occupation")
async def release_memory_occupation(request: Request, body: MemoryTags | None = None) -> WeightReply:
    if body is not None and body.tags is not None and set(body.tags) != _TAGS:
        raise InvalidRequestError("tags must be weights and kv_cache together, or left out: both are released", param="tags")
    return await sleep(request)


@router.post("/resume_memory_occupation")
async def resume_memory_occupation(request: Request, body: MemoryTags | None = None) -> WeightReply:
    return await wake_up(request, None if body is None else body.tags)


@router.api_route("/flush_cache", methods=["GET", "POST"])
async def flush_cache(request: Request) -> Response:
    await client_of(request).reset_prefix_cache()
    return Response()
