"""Who may come in, over HTTP and gRPC; what they may use; how long their bodies may be."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import anthropic
import grpc.aio
import httpx
import openai
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from jaxserve.proto import admin_pb2, admin_pb2_grpc
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.types import ServiceClass
from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving

from .conftest import bearer

PROMPT = {"prompt": "hello"}


@pytest.mark.parametrize("path", ["/health", "/version", "/docs", "/openapi.json"])
async def test_what_is_open_needs_no_key(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/messages"),
        ("POST", "/v1/responses"),
        ("POST", "/tokenize"),
        ("POST", "/reset_prefix_cache"),
        ("GET", "/no/such/path"),
    ],
)
async def test_all_the_rest_needs_one(http: httpx.AsyncClient, engine: ScriptedClient, method: str, path: str) -> None:
    for headers in ({}, bearer("wrong"), {"x-api-key": "wrong"}, {"Authorization": "Basic free"}, {"Authorization": "Bearer"}):
        reply = await http.request(method, path, json=PROMPT, headers=headers)
        assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert reply.headers["x-request-id"]
        assert "API key" in reply.json()["error"]["message"]
    assert (engine.options, engine.resets) == ([], 0)


async def test_keys_of_any_encoding_are_answered(http: httpx.AsyncClient) -> None:
    for value in (b"Bearer \xff\xfe", b"Bearer " + b"x" * 5000, b"Bearer", "Bearer schlüssel".encode()):
        reply = await http.get("/v1/models", headers=[(b"authorization", value)])
        assert reply.status_code == 401


@pytest.mark.parametrize("headers", [bearer("free"), {"Authorization": "bearer  free"}, {"x-api-key": "free"}])
async def test_a_key_says_who_pays_whatever_the_client_says(
    http: httpx.AsyncClient, engine: ScriptedClient, headers: dict[str, str]
) -> None:
    reply = await http.post("/v1/completions", json=PROMPT, headers={**headers, "X-Tenant": "globex"})
    assert reply.status_code == 200
    assert [options.tenant for options in engine.options] == ["acme"]
    assert not [name for name in reply.headers if name.startswith("x-ratelimit")]


async def test_two_different_keys_are_none(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/models", headers={**bearer("free"), "x-api-key": "limited"})).status_code == 401
    assert (await http.get("/v1/models", headers={**bearer("free"), "x-api-key": "free"})).status_code == 200


async def test_the_sdks_see_their_own_errors(servers: Serving) -> None:
    async with openai.AsyncOpenAI(base_url=f"{servers.http}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.models.list()
    assert (refused.value.code, refused.value.type) == ("invalid_api_key", "invalid_request_error")
    wish: Any = {"model": "echo", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
    async with anthropic.AsyncAnthropic(base_url=servers.http, api_key="wrong", max_retries=0) as other:
        with pytest.raises(anthropic.AuthenticationError):
            await other.messages.create(**wish)
    async with anthropic.AsyncAnthropic(base_url=servers.http, api_key="free", max_retries=0) as other:
        assert (await other.messages.create(**wish)).content[0].text == "hello"


async def test_operations_of_operators_need_an_operators_key(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    refused = await http.post("/reset_prefix_cache", headers=bearer("free"))
    assert (refused.status_code, refused.json()["error"]["code"], engine.resets) == (403, "permission_denied", 0)
    assert (await http.post("/reset_prefix_cache", headers=bearer("admin"))).status_code == 200
    assert engine.resets == 1


async def test_models_of_a_key(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    for body in (PROMPT, {**PROMPT, "model": "echo"}):
        reply = await http.post("/v1/completions", json=body, headers=bearer("elsewhere"))
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert (await http.get("/v1/models/echo", headers=bearer("elsewhere"))).status_code == 404
    assert (await http.get("/v1/models/echo", headers=bearer("free"))).status_code == 200
    assert (await http.get("/v1/models", headers=bearer("elsewhere"))).json()["data"] == []
    assert engine.options == []


async def test_classes_of_a_key(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    above = await http.post("/v1/completions", json={**PROMPT, "service_tier": "priority"}, headers=bearer("batch"))
    assert (above.status_code, above.json()["error"]["param"]) == (403, "service_class")
    for tier, used in ((None, ServiceClass.INTERACTIVE_FREE), ("flex", ServiceClass.BATCH)):
        await http.post("/v1/completions", json={**PROMPT, "service_tier": tier}, headers=bearer("batch"))
        assert engine.options[-1].service_class is used


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_long_body_is_not_read(http: httpx.AsyncClient, engine: ScriptedClient, streamed: bool) -> None:
    body = b'{"prompt": "' + b"x" * 20_000 + b'"}'

    async def pieces() -> Any:
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    headers = {"Content-Type": "application/json", **bearer("free")}
    reply = await http.post("/v1/completions", content=pieces() if streamed else body, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")
    assert engine.options == []
    fits = b'{"prompt": "hello", "user": "' + b"x" * (10_000 - 31) + b'"}'
    assert len(fits) == 10_000
    assert (await http.post("/v1/completions", content=fits, headers=headers)).status_code == 200


@pytest.mark.parametrize("key", ["", "Authorization: Bearer wrong\r\n"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/files", "/nothing"])
async def test_who_is_not_let_in_is_told_before_the_body_is_read(servers: Serving, path: str, key: str) -> None:
    host, port = servers.http.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{key}Content-Length: 10000\r\n\r\n".encode())
    async with asyncio.timeout(60):
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
    writer.close()


async def generate(channel: grpc.aio.Channel, *metadata: tuple[str, str]) -> str:
    call = InferenceStub(channel).Generate(pb.GenerateRequest(text="hello"), metadata=metadata)
    return "".join([event.delta.text async for event in call])


async def flush(channel: grpc.aio.Channel, *metadata: tuple[str, str]) -> None:
    await admin_pb2_grpc.AdminStub(channel).FlushPrefixCache(admin_pb2.FlushPrefixCacheRequest(), metadata=metadata)


async def refusal(work: Coroutine[Any, Any, Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await work
    return info.value


async def test_grpc_needs_a_key_too(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", "free"),)):
        error = await refusal(generate(channel, *metadata, ("x-request-id", "mine")))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        trailing: tuple[Any, ...] = tuple(error.trailing_metadata() or ())
        assert ("x-request-id", "mine") in trailing
        info = error_details_pb2.ErrorInfo()
        assert any(detail.Unpack(info) for detail in rpc_status.from_call(cast(Any, error)).details)
        assert info.reason == "INVALID_API_KEY"
    assert engine.options == []
    health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("method", ["/jaxserve.v1.Inference/Generate", "/jaxserve.v1.Admin/Drain"])
async def test_grpc_tells_so_before_the_message_is_read(channel: grpc.aio.Channel, method: str) -> None:
    call = channel.stream_stream(method, None, None)(None, metadata=(("x-api-key", "wrong"),))
    async with asyncio.timeout(60):
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_grpc_key_says_who_pays(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    metadata = (("authorization", "Bearer batch"), ("x-tenant", "acme"))
    call = InferenceStub(channel).Generate(pb.GenerateRequest(text="hello"), metadata=metadata)
    assert "".join([event.delta.text async for event in call]) == "hello"
    assert [(options.tenant, options.service_class) for options in engine.options] == [("batch", ServiceClass.INTERACTIVE_FREE)]
    assert dict(await call.trailing_metadata())["x-request-id"]


async def test_grpc_operators(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    error = await refusal(flush(channel, ("authorization", "Bearer free")))
    assert (error.code(), engine.resets) == (grpc.StatusCode.PERMISSION_DENIED, 0)
    await flush(channel, ("x-api-key", "admin"))
    assert engine.resets == 1


async def test_no_tenant_aborts_anothers_request(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.delay = 60.0
    stub = InferenceStub(channel)
    call = stub.Generate(pb.GenerateRequest(text="hello", request_id="job"), metadata=(("x-api-key", "free"),))
    await call.read()
    for key, aborted in (("limited", False), ("free", True)):
        reply = await stub.Abort(pb.AbortRequest(request_id="job"), metadata=(("x-api-key", key),))
        assert reply.aborted is aborted
    other = stub.Generate(pb.GenerateRequest(text="hello", request_id="job"), metadata=(("x-api-key", "limited"),))
    await other.read()
    assert len(engine.active) == 2
    for one in (call, other):
        one.cancel()
    async with asyncio.timeout(60):
        while engine.active:
            await asyncio.sleep(0.01)
