"""What trainers ask of a server between two steps of theirs, in the words of vLLM and of SGLang: pause, update, sleep.

Whoever may do this may make the server load any checkpoint of its machine: it needs an admin key, and a server that has keys.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypedDict

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from jaxserve.engine.calls import (
    AbortAll,
    Info,
    NameWeights,
    PauseEngine,
    Resume,
    SleepEngine,
    UpdateFromDisk,
    WakeUp,
)
from jaxserve.engine.client import EngineClient
from jaxserve.engine.control import WeightInfo
from jaxserve.engine.pause import PauseMode
from jaxserve.errors import CheckpointError, ConfigError, InvalidRequestError, JaxserveError, PermissionDeniedError
from server.errors import OUTCOMES
from server.http.strict_json import StrictJsonRoute

_TAGS = {"weights", "kv_cache"}
_SGLANG_MODES: dict[str, PauseMode] = {"abort": "abort", "in_place": "keep"}


def _require_keys(request: Request) -> None:
    if not request.app.state.has_keys:
        raise PermissionDeniedError("this needs a server with API keys, and one of them with admin = true")


router = APIRouter(route_class=StrictJsonRoute, include_in_schema=False, dependencies=[Depends(_require_keys)])


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class WeightReply(TypedDict):
    """What is served: `weight_version` is null for weights that nobody named."""

    weight_version: int | str | None
    fingerprint: str
    is_paused: bool
    is_sleeping: bool
    asleep: str | None


class SglangReply(TypedDict):
    """What came of it, as SGLang tells it."""

    success: bool
    message: str


def _client(request: Request) -> EngineClient:
    client: EngineClient = request.app.state.client
    return client


def _told(info: WeightInfo) -> WeightReply:
    return {
        "weight_version": info.version,
        "fingerprint": info.fingerprint,
        "is_paused": info.is_paused,
        "is_sleeping": info.asleep is not None,
        "asleep": info.asleep,
    }


@router.post("/pause")
async def pause(request: Request, mode: Annotated[PauseMode, Query()] = "abort", clear_cache: bool = True) -> WeightReply:
    """Run nothing until /resume; what comes meanwhile waits."""
    return _told(await _client(request).call(PauseEngine(mode, clear_cache)))


@router.post("/resume")
async def resume(request: Request) -> WeightReply:
    return _told(await _client(request).call(Resume()))


@router.get("/is_paused")
async def is_paused(request: Request) -> dict[str, bool]:
    return {"is_paused": (await _client(request).call(Info())).is_paused}


class AbortRequests(_Body):
    """vLLM's; ids are refused."""

    request_ids: list[str] | None = None


@router.post("/abort_requests")
async def abort_requests(request: Request, body: AbortRequests | None = None) -> dict[str, list[str]]:
    """End all requests as aborted."""
    if body is not None and body.request_ids is not None:
        raise InvalidRequestError(
            "request_ids: single requests end when their clients leave; leave it out to end all", param="request_ids"
        )
    await _client(request).call(AbortAll())
    return {"aborted": []}


async def _update(request: Request, call: UpdateFromDisk) -> WeightInfo:
    """Raises InvalidRequestError for a checkpoint that is not there, or does not fit: it was the request that named it."""
    try:
        return await _client(request).call(call)
    except (CheckpointError, ConfigError) as error:
        raise InvalidRequestError(error.message, param=error.param) from error


class UpdateInfo(_Body):
    """A checkpoint where the engine runs."""

    path: str
    mode: PauseMode = "wait"
    weight_version: int | str | None = None
    force: bool = False


class UpdateWeights(_Body):
    update_info: UpdateInfo


@router.post("/update_weights")
async def update_weights(request: Request, body: UpdateWeights) -> WeightReply:
    """Serve the weights of a checkpoint of the same model; answered when they are served."""
    info = body.update_info
    return _told(await _update(request, UpdateFromDisk(info.path, info.weight_version, info.mode, info.force)))


@router.get("/weight_info")
async def weight_info(request: Request) -> WeightReply:
    return _told(await _client(request).call(Info()))


class NewVersion(_Body):
    new_version: int | str


@router.post("/update_weight_version")
async def update_weight_version(request: Request, body: NewVersion) -> WeightReply:
    """Say what the weights are called that are served."""
    return _told(await _client(request).call(NameWeights(body.new_version)))


@router.post("/sleep")
async def sleep(request: Request, level: int = 1) -> WeightReply:
    return _told(await _client(request).call(SleepEngine(level)))


@router.post("/wake_up")
async def wake_up(request: Request, tags: Annotated[list[str] | None, Query()] = None) -> WeightReply:
    return _told(await _client(request).call(WakeUp(None if tags is None else tuple(tags))))


@router.get("/is_sleeping")
async def is_sleeping(request: Request) -> dict[str, bool]:
    return {"is_sleeping": (await _client(request).call(Info())).asleep is not None}


class FromDisk(_Body):
    """SGLang's, with what it sends by default."""

    model_path: str
    load_format: Literal["auto"] | None = None
    abort_all_requests: bool = False
    weight_version: int | str | None = None
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
        info = await _update(request, UpdateFromDisk(body.model_path, body.weight_version, mode))
    except JaxserveError as error:
        response.status_code = OUTCOMES[error.code].http
        if error.retry_after is not None:
            response.headers["retry-after"] = str(math.ceil(error.retry_after))
        return {"success": False, "message": error.message}
    return {"success": True, "message": f"weights of version {info.version} are served"}


class PauseGeneration(_Body):
    mode: Literal["abort", "retract", "in_place"] = "abort"


@router.post("/pause_generation")
async def pause_generation(request: Request, body: PauseGeneration | None = None) -> WeightReply:
    mode = "abort" if body is None else body.mode
    if mode not in _SGLANG_MODES:
        raise InvalidRequestError(f"mode {mode!r} is not supported; there are {', '.join(_SGLANG_MODES)}", param="mode")
    return _told(await _client(request).call(PauseEngine(_SGLANG_MODES[mode], clear_cache=False)))


@router.post("/continue_generation")
async def continue_generation(request: Request) -> WeightReply:
    return await resume(request)


class MemoryTags(_Body):
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
    await _client(request).reset_prefix_cache()
    return Response()
