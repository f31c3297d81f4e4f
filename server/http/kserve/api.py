"""/v2: the same as inference.GRPCInferenceService, in the protocol's JSON; and Triton's generate extension.

Each path of a model may name its only version: of two routes of a function the lower one is tried first. The protocol has its own
documents, so these routes are not in this server's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from google.protobuf.message import Message

from jaxserve.errors import InvalidRequestError
from jaxserve.proto import kserve_pb2 as pb
from jaxserve.types import RequestOptions
from jaxserve.untrusted import refused
from server.http.disconnect import until_gone
from server.http.error_bodies import body_of
from server.http.failures import json_response
from server.http.headers import TENANT_HEADER, client_of, context_of
from server.http.sse import frame, stream
from server.kserve import metadata
from server.kserve.json_replies import generate_reply, infer_reply, plain
from server.kserve.json_requests import generate_request, infer_request, read_json
from server.kserve.pooling import infer_vectors, pools
from server.kserve.replies import answers
from server.kserve.requests import Carrier, Inference, check_version, inference_of
from server.requests import admit, new_id, request_options, served
from server.streams import run


class _ContainedRoute(APIRoute):
    """A route whose requests cannot fail the server, and whose large bodies are read in turns."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def contained(request: Request) -> Response:
            if request.method == "POST":
                await request.app.state.large_bodies.turn(len(await request.body()))
            with refused(None):
                return await handle(request)

        return contained


router = APIRouter(prefix="/v2", route_class=_ContainedRoute, include_in_schema=False)

JSON_BYTES_HEADER = "Inference-Header-Content-Length"


@router.get("")
async def server() -> Response:
    """Describe the server."""
    return _told(metadata.server_metadata())


@router.get("/health/live")
async def live() -> Response:
    """Tell that this process answers."""
    return json_response({"live": True})


@router.get("/health/ready")
async def ready(request: Request) -> Response:
    """Tell whether requests are accepted; 503 if not."""
    request.app.state.observatory.check_ready()
    return json_response({"ready": True})


@router.post("/repository/index")
async def index(request: Request) -> Response:
    """List the names of the model."""
    body = await request.body()
    only_ready = read_json(body, dict[str, Any]).get("ready", False) if body else False
    if not isinstance(only_ready, bool):
        raise InvalidRequestError("ready must be true or false", param="ready")
    ready = request.app.state.observatory.check_ready
    reply = metadata.repository_index(client_of(request), ready, context_of(request), only_ready=only_ready)
    return json_response(plain(reply)["models"])


@router.get("/models/stats")
@router.get("/models/{name:path}/stats")
@router.get("/models/{name:path}/versions/{version}/stats")
async def stats(request: Request) -> Response:
    """Tell what requests took since the start."""
    metrics = await request.app.state.observatory.metrics()
    reply = metadata.model_statistics(client_of(request), *_model(request), metrics, context_of(request))
    return _told(reply)


@router.get("/models/{name:path}/ready")
@router.get("/models/{name:path}/versions/{version}/ready")
async def model_ready(request: Request) -> Response:
    """Tell whether requests for a model are accepted; 503 if not."""
    name, version = _model(request)
    client = served(client_of(request), name, context_of(request))
    check_version(version)
    request.app.state.observatory.check_ready()
    client.check_health()
    return json_response({"name": name, "ready": True})


@router.get("/models/{name:path}/config")
@router.get("/models/{name:path}/versions/{version}/config")
async def config(request: Request) -> Response:
    """Describe the model as Triton does."""
    return _told(metadata.model_config(client_of(request), *_model(request), context_of(request)))


@router.post("/models/{name:path}/infer")
@router.post("/models/{name:path}/versions/{version}/infer")
async def infer(request: Request) -> Response:
    """Answer one request at once with all of its output."""
    given, binary = infer_request(*_model(request), await request.body(), _json_bytes(request))
    answer = await _whole(request, given, "POST .../generate_stream answers piece by piece")
    body, json_bytes = infer_reply(answer, binary)
    if json_bytes is None:
        return Response(body, media_type="application/json")
    return Response(body, headers={JSON_BYTES_HEADER: str(json_bytes)}, media_type="application/octet-stream")


@router.post("/models/{name:path}/generate")
@router.post("/models/{name:path}/versions/{version}/generate")
async def generate(request: Request) -> Response:
    """Answer one text at once with all of its output."""
    given = generate_request(*_model(request), await request.body())
    return json_response(generate_reply(await _whole(request, given, "generate_stream answers piece by piece")))


@router.post("/models/{name:path}/generate_stream")
@router.post("/models/{name:path}/versions/{version}/generate_stream")
async def generate_stream(request: Request) -> Response:
    """Answer one text with events: one, or one for each piece if `stream` is true, of which the last may have no text."""
    inference = _inference(request, generate_request(*_model(request), await request.body()))
    return await stream(request, _frames(request, inference), lambda error: frame(body_of(error, request.scope["path"])))


@router.get("/models/{name:path}")
@router.get("/models/{name:path}/versions/{version}")
async def model(request: Request) -> Response:
    """Describe the model's tensors."""
    return _told(metadata.model_metadata(client_of(request), *_model(request), context_of(request)))


def _model(request: Request) -> tuple[str, str]:
    """Name and version that the path gives."""
    return request.path_params.get("name", ""), request.path_params.get("version", "")


def _json_bytes(request: Request) -> int | None:
    given = request.headers.get(JSON_BYTES_HEADER)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 20):
        raise InvalidRequestError(f"{JSON_BYTES_HEADER} must be a number of bytes", param=JSON_BYTES_HEADER)
    return int(given)


def _inference(request: Request, given: pb.ModelInferRequest) -> Inference:
    return inference_of(client_of(request), given, _carrier(request))


def _carrier(request: Request) -> Carrier:
    def options(fields: Any) -> RequestOptions:
        return request_options(request.headers.getlist(TENANT_HEADER), fields, tenant_name=TENANT_HEADER)

    return Carrier(context_of(request), options, TENANT_HEADER)


async def _whole(request: Request, given: pb.ModelInferRequest, instead: str) -> pb.ModelInferResponse:
    """The only answer of a request that wants no stream."""
    client = admit(client_of(request), given.model_name, context_of(request))
    if pools(client, given):
        return await until_gone(request.receive, infer_vectors(client, given, _carrier(request), new_id("infer")))
    inference = _inference(request, given)
    if inference.stream:
        raise InvalidRequestError(f"stream must be false: {instead}", param="stream")

    async def last() -> pb.ModelInferResponse:
        (answer,) = [answer async for answer in _answers(request, inference)]
        return answer

    return await until_gone(request.receive, last())


async def _frames(request: Request, inference: Inference) -> AsyncGenerator[bytes, None]:
    async with aclosing(_answers(request, inference)) as found:
        async for answer in found:
            yield frame(generate_reply(answer))


def _answers(request: Request, inference: Inference) -> AsyncGenerator[pb.ModelInferResponse, None]:
    return answers(inference, run(inference.client, inference.job, context_of(request)))


def _told(message: Message) -> Response:
    return json_response(plain(message))
