"""Every path and every gRPC method is open, for keys or for operators' keys, as is written here: none can be forgotten."""

from __future__ import annotations

import re
from collections.abc import Sequence

import grpc
import grpc.aio
import httpx
import pytest
from google.protobuf.descriptor_pool import Default
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from .conftest import bearer

OPEN_PATHS = {"/health", "/health/deep", "/ready", "/ping", "/metrics", "/version"}
ADMIN_PATHS = {
    "/debug/trace",
    "/debug/engine",
    "/reset_prefix_cache",
    "/kv_event_sources",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
}
OPEN_METHODS = {
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.health.v1.Health/List",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    "/inference.GRPCInferenceService/ModelReady",
    "/vllm.grpc.engine.VllmEngine/HealthCheck",
}
ADMIN_METHODS = {
    "/jaxserve.v1.Admin/GetLoad",
    "/jaxserve.v1.Admin/WatchLoad",
    "/jaxserve.v1.Admin/Drain",
    "/jaxserve.v1.Admin/FlushPrefixCache",
    "/vllm.grpc.engine.VllmEngine/FlushCache",
}


async def test_http(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    operations = [(method.upper(), re.sub("{.*?}", "echo", path)) for path, ways in paths.items() for method in ways]
    found: dict[str, set[str]] = {"open": set(), "key": set(), "admin": set()}
    for method, path in operations:
        replies = [(await http.request(method, path, json={}, headers=headers)).status_code for headers in ({}, bearer("free"))]
        found["open" if replies[0] != 401 else "admin" if replies[1] == 403 else "key"].add(path)
    assert (found["open"], found["admin"]) == (OPEN_PATHS, ADMIN_PATHS)
    assert len(found["key"]) == len(paths) - len(OPEN_PATHS) - len(ADMIN_PATHS) >= 15


WRITTEN_OTHERWISE = (
    "//v1/models",
    "/v1//models",
    "/v1/models/",
    "/./v1/models",
    "/health/../v1/models",
    "/docs/../debug/trace",
    "/health/%2e%2e/v1/models",
    "/%76%31/models",
    "/health%2f..%2fv1/models",
    "/v1/models;x=/health",
    "/v1/models?/health",
    "/health/../debug/trace",
    "/debug/./trace",
    "/debug%2ftrace",
    "/debug/trace%00",
    "/DEBUG/TRACE",
)


@pytest.mark.parametrize("headers", [{}, {"X-Forwarded-Prefix": "/health", "X-Original-URL": "/health", "Host": "health"}])
async def test_no_way_to_write_a_path_opens_it(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    for path in WRITTEN_OTHERWISE:  # sent as it is: clients would tidy it up
        reply = await http.request("GET", "/", headers=headers, extensions={"target": path.encode()})
        assert reply.status_code in (401, 404), path
        assert "echo" not in reply.text, path
        assert "traceEvents" not in reply.text, path


async def test_a_key_in_the_query_is_none(http: httpx.AsyncClient) -> None:
    for name in ("key", "api_key", "api-key", "access_token", "x-api-key", "authorization"):
        assert (await http.get("/v1/models", params={name: "free"})).status_code == 401


async def test_grpc(channel: grpc.aio.Channel) -> None:
    found: dict[str, set[str]] = {"open": set(), "key": set(), "admin": set()}
    methods = [
        f"/{service}/{method.name}"
        for service in await _services(channel)
        for method in Default().FindServiceByName(service).methods
    ]
    for method in methods:
        codes = [await _code(channel, method, metadata) for metadata in ((), (("x-api-key", "free"),))]
        is_open, is_admin = codes[0] is not grpc.StatusCode.UNAUTHENTICATED, codes[1] is grpc.StatusCode.PERMISSION_DENIED
        found["open" if is_open else "admin" if is_admin else "key"].add(method)
    assert (found["open"], found["admin"]) == (OPEN_METHODS & set(methods), ADMIN_METHODS)
    assert len(found["key"]) >= 15


async def _services(channel: grpc.aio.Channel) -> Sequence[str]:
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask]), metadata=(("x-api-key", "free"),))
    answers = [answer async for answer in call]
    names = [service.name for service in answers[0].list_services_response.service]
    assert len(names) == 6
    return names


async def _code(channel: grpc.aio.Channel, method: str, metadata: tuple[tuple[str, str], ...]) -> grpc.StatusCode:
    """How the first answer to an empty request comes.

    Asked as a call of one message, which leaves with the call: a stream's message may be written when the server has already
    refused, and grpcio then says INTERNAL or CANCELLED where the server said UNAUTHENTICATED.
    """
    call = channel.unary_stream(method, None, None)(b"", metadata=metadata)
    try:
        ended = await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]  # the code may come a moment later
        return await call.code() if ended else grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        call.cancel()
