"""Idempotency keys over HTTP and gRPC: one run, everybody's answer."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest

from jaxserve.errors import InternalError
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto import kserve_pb2 as kserve
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.proto.kserve_pb2_grpc import GRPCInferenceServiceStub as KserveStub
from tests.support.scripted import ScriptedClient
from tests.support.serving import serving

from .conftest import bearer, usage

BODY: dict[str, Any] = {"prompt": "hello"}


def keyed(key: str, who: str = "free") -> dict[str, str]:
    return {**bearer(who), "Idempotency-Key": key}


def completions(http: httpx.AsyncClient, key: str = "k", who: str = "free", **fields: Any) -> Any:
    return http.post("/v1/completions", json={**BODY, **fields}, headers=keyed(key, who))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_request_gets_the_first_answer(http: httpx.AsyncClient, engine: ScriptedClient, stream: bool) -> None:
    first = await completions(http, stream=stream)
    second = await completions(http, stream=stream)
    assert (first.status_code, second.status_code, len(engine.options)) == (200, 200, 1)
    assert first.content == second.content
    assert b"h" in first.content
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert second.headers["content-type"] == first.headers["content-type"]
    assert second.headers["x-request-id"] != first.headers["x-request-id"]
    assert (await completions(http, who="limited", stream=stream)).headers.get("idempotency-replayed") is None
    assert len(engine.options) == 2


async def test_a_repeated_request_joins_a_stream_from_its_start(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    engine.delay = 0.05
    async with http.stream("POST", "/v1/completions", json={**BODY, "stream": True}, headers=keyed("k")) as first:
        lines = first.aiter_lines()
        early = await anext(lines)
        second = await completions(http, stream=True)
        assert second.text.startswith(early)
        assert second.text.endswith("data: [DONE]\n\n")
        assert second.text.splitlines() == [early, *[line async for line in lines]]
    assert len(engine.options) == 1


async def test_the_run_goes_on_for_those_who_stay_and_ends_with_the_last(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    engine.delay = 0.05
    wish: dict[str, Any] = {"method": "POST", "url": "/v1/completions", "json": {**BODY, "stream": True}}
    async with http.stream(**wish, headers=keyed("k")) as second:
        async with http.stream(**wish, headers=keyed("k")) as first:
            await anext(first.aiter_lines())
        lines = [line async for line in second.aiter_lines()]
    assert lines[-2:] == ["data: [DONE]", ""]
    assert engine.aborted == []
    assert len(engine.options) == 1
    alone = {**keyed("l"), "Idempotency-Grace": "0"}
    async with http.stream("POST", "/v1/completions", json={**BODY, "stream": True}, headers=alone) as first:
        await anext(first.aiter_lines())
    async with asyncio.timeout(60):
        while not engine.aborted:
            await asyncio.sleep(0.01)
    assert not engine.active


async def test_a_client_that_comes_back_in_time_gets_all_of_the_stream(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    engine.delay = 0.05
    wish: dict[str, Any] = {"method": "POST", "url": "/v1/completions", "json": {**BODY, "stream": True}, "headers": keyed("k")}
    async with http.stream(**wish) as first:
        early = await anext(first.aiter_lines())
    async with asyncio.timeout(60):
        while engine.active:  # nobody reads
            await asyncio.sleep(0.01)
    async with http.stream(**wish) as second:
        lines = [line async for line in second.aiter_lines()]
    assert second.headers["idempotency-replayed"] == "true"
    assert (lines[0], lines[-2:]) == (early, ["data: [DONE]", ""])
    assert (len(engine.options), engine.aborted) == (1, [])


async def test_a_grace_that_is_none_is_refused(http: httpx.AsyncClient) -> None:
    for value in ("soon", "-1", "nan", "inf", ""):
        reply = await http.post("/v1/completions", json=BODY, headers={**keyed("k"), "Idempotency-Grace": value})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "Idempotency-Grace")


async def test_another_body_or_path_with_the_key_is_refused(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    await completions(http)
    for refused in (
        await completions(http, max_tokens=3),
        await http.post("/v1/chat/completions", json=BODY, headers=keyed("k")),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert len(engine.options) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_failures_are_not_kept(http: httpx.AsyncClient, engine: ScriptedClient, stream: bool) -> None:
    engine.failure, engine.fail_after = InternalError("broken"), 2
    failed = await completions(http, stream=stream)
    assert "broken" in failed.text
    engine.failure = None
    again = await completions(http, stream=stream)
    assert "broken" not in again.text
    assert "idempotency-replayed" not in again.headers
    assert len(engine.options) == 2
    invalid = [await completions(http, key="other", temperature=-1) for _ in range(2)]
    assert [reply.status_code for reply in invalid] == [400, 400]


async def test_keys_are_checked(http: httpx.AsyncClient) -> None:
    for value in ("x" * 256, "é".encode()):
        headers: list[Any] = [("x-api-key", "free"), ("idempotency-key", value)]
        reply = await http.post("/v1/completions", json=BODY, headers=headers)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "Idempotency-Key")
    twice = [("x-api-key", "free"), ("idempotency-key", "a"), ("idempotency-key", "b")]
    assert (await http.post("/v1/completions", json=BODY, headers=twice)).status_code == 400


async def test_what_is_repeated_is_paid_once(tmp_path: Path, engine: ScriptedClient) -> None:
    keys, log = tmp_path / "keys.toml", tmp_path / "usage.jsonl"
    keys.write_text(f'[[key]]\nsha256 = "{hashlib.sha256(b"free").hexdigest()}"\ntenant = "acme"\ntpm = 6000\n')
    async with (
        serving(engine, keys=str(keys), usage_log=str(log)) as servers,
        httpx.AsyncClient(base_url=servers.http, timeout=30) as http,
    ):
        for _ in range(3):
            reply = await completions(http)
        assert reply.headers["x-ratelimit-limit-tokens"] == "6000"
        assert int(reply.headers["x-ratelimit-remaining-tokens"]) >= 5990
    assert sum(event["completion_tokens"] for event in usage(log)) == 5
    assert sum(event["prompt_tokens"] for event in usage(log)) == 5


async def generate(
    channel: grpc.aio.Channel, key: str = "k", who: str = "free", **fields: Any
) -> tuple[list[Any], dict[str, Any]]:
    metadata = (("x-api-key", who), ("idempotency-key", key))
    call = InferenceStub(channel).Generate(pb.GenerateRequest(text="hello", **fields), metadata=metadata)
    events = [event async for event in call]
    return events, dict(await call.trailing_metadata())


async def test_grpc_calls_are_repeated_and_joined(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.delay = 0.02
    (first, told), (second, other) = await asyncio.gather(generate(channel), generate(channel))
    third, last = await generate(channel)
    assert first == second == third
    assert len(engine.options) == 1
    assert sorted("idempotency-replayed" in one for one in (told, other, last)) == [False, True, True]
    assert len({one["x-request-id"] for one in (told, other, last)}) == 3


async def test_grpc_keys_belong_to_a_request(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    await generate(channel)
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await generate(channel, cache_salt="x")
    assert info.value.code() is grpc.StatusCode.ALREADY_EXISTS
    engine.failure = InternalError("broken")
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError) as info:
            await generate(channel, "l")
        assert info.value.code() is grpc.StatusCode.INTERNAL
        assert info.value.details() == "broken"
    assert len(engine.options) == 3


async def test_open_routes_keep_no_keys(http: httpx.AsyncClient, channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    """Who has no key of the server's takes none of a tenant's: not by saying that they are it, nor over either surface."""
    claims = (("x-tenant", "acme"), ("idempotency-key", "k"))
    for _ in range(2):
        live = KserveStub(channel).ServerLive(kserve.ServerLiveRequest(), metadata=claims)
        assert (await live).live
        assert "idempotency-replayed" not in dict(await live.trailing_metadata())
        for path in ("/health", "/health/deep", "/version", "/docs/x"):
            assert "idempotency-replayed" not in (await http.post(path, headers=dict(claims))).headers
    reply = await completions(http)
    assert (reply.status_code, "idempotency-replayed" in reply.headers) == (200, False)
    assert len(engine.options) == 1
