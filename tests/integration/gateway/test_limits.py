"""Limits of tenants over HTTP and gRPC: refusals with the exact time, headers, others who notice nothing."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, cast

import grpc.aio
import httpx
import openai
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from jaxserve.errors import QueueFullError
from jaxserve.logs import FIELDS
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving

from .conftest import bearer

LIMITED = bearer("limited")  # 100 requests and 6,000 tokens a minute


def seconds(text: str) -> float:
    """A duration as OpenAI writes it."""
    units = {"m": 60.0, "s": 1.0, "ms": 0.001}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)(ms|m|s)", text))


def left(reply: httpx.Response) -> tuple[int, int]:
    return int(reply.headers["x-ratelimit-remaining-requests"]), int(reply.headers["x-ratelimit-remaining-tokens"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_charge_is_an_estimate_and_then_what_was_used(http: httpx.AsyncClient, stream: bool) -> None:
    body = {"prompt": "x" * 50, "max_tokens": 400, "stream": stream}
    reply = await http.post("/v1/completions", json=body, headers=LIMITED)
    requests, tokens = left(reply)
    assert reply.headers["x-ratelimit-limit-requests"] == "100"
    assert reply.headers["x-ratelimit-limit-tokens"] == "6000"
    assert (requests, tokens) == (99, 6000 - 50 // 4 - 1 - 400)
    assert seconds(reply.headers["x-ratelimit-reset-tokens"]) == pytest.approx((6000 - tokens) / 100, abs=0.02)
    assert seconds(reply.headers["x-ratelimit-reset-requests"]) == pytest.approx(0.6, abs=0.01)
    after = await http.get("/v1/models", headers=LIMITED)
    assert left(after)[1] >= 6000 - 50 - 50, "of prompt and output"


async def test_failures_and_disconnects_give_back_what_they_did_not_use(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    body = {"prompt": "x" * 40, "max_tokens": 400}
    for failure in (QueueFullError("full"), RuntimeError("broken")):
        engine.failure, engine.fail_after = failure, 3
        assert (await http.post("/v1/completions", json=body, headers=LIMITED)).status_code >= 429
    assert (await http.post("/v1/completions", json={**body, "max_tokens": 600}, headers=LIMITED)).status_code == 400
    engine.failure, engine.delay = None, 0.01
    async with http.stream("POST", "/v1/completions", json={**body, "stream": True}, headers=LIMITED) as reply:
        await anext(reply.aiter_lines())
    while engine.active:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert left(await http.get("/v1/models", headers=LIMITED))[1] >= 6000 - 3 * 40 - 2 * 3 - 20


async def test_over_its_tokens_a_tenant_gets_429_with_the_exact_time_and_recovers(
    http: httpx.AsyncClient, engine: ScriptedClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "server.observe.access")
    engine.delay = 0.05
    body = {"prompt": "x" * 40, "max_tokens": 400, "n": 14}
    running = asyncio.create_task(http.post("/v1/completions", json=body, headers=LIMITED))
    while not engine.active:
        await asyncio.sleep(0.005)
    refused = await http.post("/v1/completions", json=body, headers=LIMITED)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    remaining = left(refused)[1]
    told = re.search(r"limit 6000, used (\d+), requested 5611\. Please try again in ([\d.]+)s\.", error["message"])
    assert told is not None
    assert int(told[1]) == 6000 - remaining
    assert float(told[2]) == pytest.approx((5611 - remaining) / 100, abs=0.011)
    assert float(told[2]) <= int(refused.headers["retry-after"]) <= 1.25 * float(told[2]) + 1
    assert refused.headers["x-request-id"]
    lines = [getattr(record, FIELDS) for record in caplog.records if record.name == "server.observe.access"]
    assert [line["tenant"] for line in lines if line["status"] == 429] == ["globex"]

    assert (await http.post("/v1/completions", json=body, headers=bearer("free"))).status_code == 200
    assert (await running).status_code == 200
    assert (await http.post("/v1/completions", json={**body, "n": 10}, headers=LIMITED)).status_code == 200


async def test_the_sdk_waits_and_comes_back(servers: Serving, engine: ScriptedClient) -> None:
    engine.delay = 0.01
    async with openai.AsyncOpenAI(base_url=f"{servers.http}/v1", api_key="batch", max_retries=0) as client:
        first = asyncio.create_task(client.completions.create(model="echo", prompt="x" * 30))
        while not engine.active:
            await asyncio.sleep(0.005)
        with pytest.raises(openai.RateLimitError, match="1 requests running"):
            await client.completions.create(model="echo", prompt="hi")
        reply = await client.with_options(max_retries=5).completions.create(model="echo", prompt="hi")
        assert reply.choices[0].text == "hi"
        await first


async def test_a_request_that_could_never_run_is_a_400(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/completions", json={"prompt": "x" * 40, "n": 15, "max_tokens": 400}, headers=LIMITED)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "max_tokens")
    assert "6011 tokens" in reply.json()["error"]["message"]


async def test_a_day_has_an_end(http: httpx.AsyncClient) -> None:
    body = {"prompt": "x" * 4, "max_tokens": 4}
    replies = [await http.post("/v1/completions", json=body, headers=bearer("daily")) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [200, 200, 429, 429]
    assert replies[2].json()["error"]["code"] == "insufficient_quota"
    assert 1 <= int(replies[2].headers["retry-after"]) <= 1.25 * 86400 + 1


async def test_a_grpc_client_is_told_too(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.delay = 0.05
    metadata = (("authorization", "Bearer limited"),)
    stub = InferenceStub(channel)
    request = pb.GenerateRequest(text="x" * 40, stopping=pb.Stopping(max_tokens=400), sampling=pb.Sampling(n=14))
    call = stub.Generate(request, metadata=metadata)
    events = call.__aiter__()
    await anext(events)
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await stub.Generate(request, metadata=metadata).read()
    assert info.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in rpc_status.from_call(cast(Any, info.value)).details)
    assert 51.0 < retry.retry_delay.ToMilliseconds() / 1000 < 53 * 1.25
    trailing: Any = dict(cast(Any, info.value.trailing_metadata()) or ())
    assert (trailing["x-ratelimit-limit-tokens"], trailing["x-ratelimit-remaining-requests"]) == ("6000", "99")
    other = stub.Generate(request, metadata=(("authorization", "Bearer free"),))
    assert len([event async for event in other]) == 1 + 14 * 41
    assert len([event async for event in events]) == 14 * 41
    assert dict(await call.trailing_metadata())["x-ratelimit-limit-requests"] == "100"


async def test_tokenizing_counts_as_a_request_that_takes_no_tokens(http: httpx.AsyncClient) -> None:
    chat = [{"role": "user", "content": "hi"}]
    bodies = {
        "/tokenize": {"prompt": "x" * 400},
        "/detokenize": {"tokens": [104, 105]},
        "/v1/messages/count_tokens": {"messages": chat, "model": "echo"},
    }
    for used, (path, body) in enumerate(bodies.items(), 1):
        reply = await http.post(path, json=body, headers=LIMITED)
        assert reply.status_code == 200, reply.text
        assert left(reply) == (100 - used, 6000)
    while reply.status_code == 200:  # sooner than they come back
        reply = await http.post("/tokenize", json={"prompt": "hi"}, headers=LIMITED)
    assert reply.status_code == 429
    assert reply.json()["error"]["code"] == "rate_limit_exceeded"


async def test_tokenizing_counts_among_what_runs_at_the_same_time(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.delay = 0.01
    held = InferenceStub(channel).Generate(pb.GenerateRequest(text="x" * 100), metadata=[("x-api-key", "batch")])
    await held.read()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await InferenceStub(channel).Tokenize(pb.TokenizeRequest(text="hi"), metadata=[("x-api-key", "batch")])
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    held.cancel()
