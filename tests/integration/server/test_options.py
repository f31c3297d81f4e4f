"""Whose request it is and what it may take: from HTTP and gRPC to the engine, and back in the answer."""

from __future__ import annotations

from typing import Any, cast

import grpc.aio
import httpx
import openai
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.types import RequestOptions, ServiceClass
from tests.support.scripted import ScriptedClient

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
BOTH: dict[str, dict[str, Any]] = {"/v1/chat/completions": CHAT, "/v1/completions": {"prompt": "hi"}}
EVERY: dict[str, Any] = {
    "service_class": "batch",
    "cache_salt": "pepper",
    "queue_timeout": 1,
    "timeout": 2.5,
    "max_total_tokens": 77,
}
PATHS = pytest.mark.parametrize("path", BOTH)


def wanted(**more: Any) -> RequestOptions:
    return RequestOptions(**{**EVERY, "service_class": ServiceClass.BATCH, **more})


@PATHS
async def test_every_option_reaches_the_engine_over_http(http: httpx.AsyncClient, engine: ScriptedClient, path: str) -> None:
    await http.post(path, json={**BOTH[path], **EVERY}, headers={"X-Tenant": "acme"})
    await http.post(path, json={**BOTH[path], **dict.fromkeys(EVERY), "service_tier": None})
    assert engine.options == [wanted(tenant="acme"), RequestOptions()]
    assert isinstance(engine.options[0].service_class, ServiceClass)


@PATHS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "service_class", "used"),
    [
        ("auto", None, "default"),
        ("default", None, "default"),
        ("flex", ServiceClass.BATCH, "flex"),
        ("priority", ServiceClass.INTERACTIVE_PAID, "priority"),
    ],
)
async def test_service_tiers_are_classes_and_come_back(
    http: httpx.AsyncClient, engine: ScriptedClient, path: str, stream: bool, asked: str, service_class: Any, used: str
) -> None:
    reply = await http.post(path, json={**BOTH[path], "service_tier": asked, "stream": stream})
    assert reply.status_code == 200
    assert reply.text.count(f'"service_tier":"{used}"') == (reply.text.count('"created"') if stream else 1)
    assert engine.options == [RequestOptions(service_class=service_class)]


async def test_no_tier_is_told_to_those_who_ask_for_none(http: httpx.AsyncClient) -> None:
    assert "service_tier" not in (await http.post("/v1/completions", json={"prompt": "hi", "service_class": "batch"})).json()


async def test_the_sdk_knows_tiers(sdk: openai.AsyncOpenAI, engine: ScriptedClient) -> None:
    messages: Any = CHAT["messages"]
    reply = await sdk.chat.completions.create(
        model="echo", messages=messages, service_tier="flex", extra_body={"cache_salt": "x"}, extra_headers={"X-Tenant": "me"}
    )
    assert reply.service_tier == "flex"
    assert engine.options == [RequestOptions(tenant="me", service_class=ServiceClass.BATCH, cache_salt="x")]


@PATHS
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"service_tier": "scale"}, "service_tier", "must be one of auto, default, flex and priority"),
        ({"service_class": "gold"}, "service_class", "must be 'interactive_paid', 'interactive_free' or 'batch'"),
        ({"cache_salt": ""}, "cache_salt", "must not be empty"),
        ({"cache_salt": 3}, "cache_salt", "must be"),
        ({"timeout": "soon"}, "timeout", "must be"),
        ({"queue_timeout": True}, "queue_timeout", "must be"),
        ({"max_total_tokens": 1.5}, "max_total_tokens", "must be"),
    ],
)
async def test_bad_options_over_http(
    http: httpx.AsyncClient, engine: ScriptedClient, path: str, fields: dict[str, Any], param: str, words: str
) -> None:
    reply = await http.post(path, json={**BOTH[path], **fields})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, "invalid_request")
    assert error["message"].startswith(f"{param} {words}")
    assert engine.options == []


@PATHS
@pytest.mark.parametrize(
    "fields", [{"service_tier": "flex", "service_class": "batch"}, {"service_tier": "auto", "service_class": "batch"}]
)
async def test_a_tier_and_a_class_may_agree(
    http: httpx.AsyncClient, engine: ScriptedClient, path: str, fields: dict[str, Any]
) -> None:
    assert (await http.post(path, json={**BOTH[path], **fields})).status_code == 200
    assert engine.options == [RequestOptions(service_class=ServiceClass.BATCH)]


@PATHS
async def test_a_tenant_is_named_once(http: httpx.AsyncClient, engine: ScriptedClient, path: str) -> None:
    reply = await http.post(path, json=BOTH[path], headers=[("x-tenant", "mine"), ("x-tenant", "yours")])
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "X-Tenant")
    assert error["message"] == "X-Tenant must be given once, got 2"
    assert engine.options == []


def failure(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str]:
    """The code, and the field that is at fault."""
    found = error_details_pb2.BadRequest()
    assert rpc_status.from_call(cast(Any, error)).details[0].Unpack(found)
    return error.code(), found.field_violations[0].field


async def test_every_option_reaches_the_engine_over_grpc(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    stub = InferenceStub(channel)
    call = stub.Generate(pb.GenerateRequest(text="hi", **EVERY), metadata=(("x-tenant", "acme"),))
    assert [event async for event in call]
    assert [event async for event in stub.Generate(pb.GenerateRequest(text="hi"))]
    assert engine.options == [wanted(tenant="acme"), RequestOptions()]


@pytest.mark.parametrize(
    ("fields", "metadata", "param"),
    [
        ({"service_class": "gold"}, (), "service_class"),
        ({"service_class": ""}, (), "service_class"),
        ({"cache_salt": ""}, (), "cache_salt"),
        ({}, (("x-tenant", "mine"), ("x-tenant", "yours")), "x-tenant"),
    ],
)
async def test_bad_options_over_grpc(
    channel: grpc.aio.Channel, engine: ScriptedClient, fields: dict[str, Any], metadata: Any, param: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await InferenceStub(channel).Generate(pb.GenerateRequest(text="hi", **fields), metadata=metadata).read()
    assert failure(info.value) == (grpc.StatusCode.INVALID_ARGUMENT, param)
    assert engine.options == []


async def test_the_prefix_cache_is_reset(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    reply = await http.post("/reset_prefix_cache")
    assert (reply.status_code, reply.content, engine.resets) == (200, b"", 1)
    assert (await http.get("/reset_prefix_cache")).status_code == 405
    assert engine.resets == 1
