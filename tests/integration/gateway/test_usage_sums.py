"""The sum of usage events is what clients got: whole and streamed, over both servers, under every kind of end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest

from jaxserve.errors import EngineDeadError, InternalError, QueueFullError
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving, serving

from .conftest import bearer, delivered, usage

FREE = bearer("free")


async def got_of_stream(http: httpx.AsyncClient, body: dict[str, Any], *, most: int | None = None) -> int:
    """Tokens that a client sees in a stream, of which it may read only the first."""
    got = 0
    async with http.stream("POST", "/v1/completions", json={**body, "stream": True}, headers=FREE) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                got += sum(len(choice["text"]) for choice in json.loads(line[6:]).get("choices", ()))
            if got == most:
                break
    return got


@pytest.mark.parametrize("body", [{"prompt": "hello"}, {"prompt": "hello", "n": 3}, {"prompt": ["hello", "hi"], "n": 2}])
async def test_whole_and_streamed_answers(
    http: httpx.AsyncClient, servers: Serving, usage_log: Path, body: dict[str, Any]
) -> None:
    reply = await http.post("/v1/completions", json=body, headers={**FREE, "X-Request-Id": "mine"})
    told = reply.json()["usage"]
    streamed = await got_of_stream(http, body)
    await servers.servers.stop()
    events = usage(usage_log)
    assert told["completion_tokens"] == streamed
    assert delivered(events) == 2 * streamed
    mine = [event for event in events if event["request_id"] == "mine"]
    assert {event["completion_id"] for event in mine} == {reply.json()["id"]}
    for of in ("prompt", "completion"):
        assert sum(event[f"{of}_tokens"] for event in mine) == told[f"{of}_tokens"]
    assert sum(event["cached_tokens"] for event in mine) == told["prompt_tokens_details"]["cached_tokens"]
    places = {(event["prompt"], event["index"]) for event in mine}
    assert len(places) == len(reply.json()["choices"])
    finals = [event for event in mine if event["final"]]
    assert {(event["prompt"], event["index"]) for event in finals} == places
    assert [event["reason"] for event in finals] == ["stop"] * len(places)
    assert {(event["tenant"], event["key_id"], event["model"]) for event in events} == {("acme", "free", "echo")}


async def test_tokens_in_and_tokens_out(http: httpx.AsyncClient, servers: Serving, usage_log: Path) -> None:
    body = {"token_ids": list(b"hello"), "sampling_params": {"n": 2}}
    reply = await http.post("/inference/v1/generate", json=body, headers=FREE)
    told = reply.json()["usage"]
    streamed = (await http.post("/inference/v1/generate", json={**body, "stream": True}, headers=FREE)).text
    await servers.servers.stop()
    events = usage(usage_log)
    assert told["completion_tokens"] == sum(len(choice["token_ids"]) for choice in reply.json()["choices"]) > 0
    assert delivered(events) == 2 * told["completion_tokens"]
    mine = [event for event in events if event["completion_id"] == reply.json()["request_id"]]
    assert sum(event["prompt_tokens"] for event in mine) == told["prompt_tokens"] == 5
    assert sum(event["completion_tokens"] for event in mine) == told["completion_tokens"]
    assert {(event["index"], event["reason"]) for event in mine if event["final"]} == {(0, "stop"), (1, "stop")}
    assert streamed.count('"token_ids":[') == told["completion_tokens"] + 2


async def test_a_client_that_leaves_pays_for_what_it_got(
    http: httpx.AsyncClient, engine: ScriptedClient, servers: Serving, usage_log: Path
) -> None:
    engine.delay = 0.02
    got = await got_of_stream(http, {"prompt": "x" * 200}, most=7)
    with pytest.raises(httpx.ReadTimeout):
        await http.post("/v1/completions", json={"prompt": "x" * 200}, headers=FREE, timeout=0.2)
    await asyncio.sleep(0.1)
    await servers.servers.stop()
    events = usage(usage_log)
    assert got == 7
    assert 7 <= delivered(events) <= 12, "what is on its way while the client leaves has been handed over"
    assert [event["reason"] for event in events if event["final"]] == ["disconnected", "disconnected"]
    assert sum(event["prompt_tokens"] for event in events) == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", [EngineDeadError("dead"), InternalError("broken"), RuntimeError("a secret")])
async def test_an_answer_that_fails_costs_what_was_sent_of_it(
    http: httpx.AsyncClient, engine: ScriptedClient, servers: Serving, usage_log: Path, failure: Exception, stream: bool
) -> None:
    engine.failure, engine.fail_after = failure, 3
    body = {"prompt": "hello", "n": 2}
    got = await got_of_stream(http, body) if stream else 0
    if not stream:
        assert (await http.post("/v1/completions", json=body, headers=FREE)).status_code >= 500
    await servers.servers.stop()
    events = usage(usage_log)
    assert (delivered(events), got) == ((6, 6) if stream else (0, 0))
    reason = failure.code.value if isinstance(failure, EngineDeadError | InternalError) else "internal_error"
    assert [event["reason"] for event in events if event["final"]] == [reason, reason]


async def test_what_is_refused_costs_nothing(
    http: httpx.AsyncClient, engine: ScriptedClient, servers: Serving, usage_log: Path
) -> None:
    await http.post("/v1/completions", json={"prompt": "x" * 600}, headers=FREE)
    await http.post("/v1/completions", json={"prompt": "hello"}, headers=bearer("wrong"))
    engine.options.clear()
    engine.failure = QueueFullError("full")
    await http.post("/v1/completions", json={"prompt": "hello", "temperature": -1}, headers=FREE)
    await servers.servers.stop()
    assert usage(usage_log) == []


async def test_output_that_is_made_and_thrown_away_is_not_paid_for(
    http: httpx.AsyncClient, servers: Serving, usage_log: Path
) -> None:
    body = {"prompt": "hello", "max_tokens": 0, "echo": True, "logprobs": 1}
    reply = await http.post("/v1/completions", json=body, headers=FREE)
    assert reply.json()["usage"]["completion_tokens"] == 0
    await servers.servers.stop()
    events = usage(usage_log)
    assert (delivered(events), sum(event["prompt_tokens"] for event in events)) == (0, 5)


async def test_grpc_calls(channel: grpc.aio.Channel, engine: ScriptedClient, servers: Serving, usage_log: Path) -> None:
    engine.delay = 0.01
    stub = InferenceStub(channel)
    metadata = (("x-api-key", "free"), ("x-request-id", "mine"))

    def call(**fields: Any) -> Any:
        return stub.Generate(pb.GenerateRequest(text="hello", **fields), metadata=metadata)

    got = 0
    async for event in call(request_id="whole", sampling=pb.Sampling(n=2)):
        got += len(event.delta.token_ids)
    cancelled = call(request_id="cancelled")
    async for event in cancelled:
        if event.HasField("delta"):
            break
    cancelled.cancel()
    engine.failure, engine.fail_after = InternalError("broken"), 2
    failed = call(request_id="failed")
    async for event in failed:
        got += len(event.delta.token_ids)
        if got == 12:
            break
    assert await failed.code() is grpc.StatusCode.INTERNAL
    await asyncio.sleep(0.1)
    await servers.servers.stop()
    events = usage(usage_log)
    by_call = {name: [event for event in events if event["completion_id"] == name] for name in ("whole", "cancelled", "failed")}
    assert sum(map(len, by_call.values())) == len(events)
    assert (delivered(by_call["whole"]) + delivered(by_call["failed"]), got) == (12, 12)
    assert 1 <= delivered(by_call["cancelled"]) <= 5
    assert {event["request_id"] for event in events} == {"mine"}
    reasons = {name: {event["reason"] for event in of if event["final"]} for name, of in by_call.items()}
    assert reasons == {"whole": {"stop"}, "cancelled": {"disconnected"}, "failed": {"internal_error"}}


async def test_without_keys_the_tenant_is_who_the_client_says(engine: ScriptedClient, usage_log: Path) -> None:
    async with serving(engine, usage_log=str(usage_log)) as servers, httpx.AsyncClient(base_url=servers.http, timeout=30) as http:
        await http.post("/v1/completions", json={"prompt": "hello", "service_class": "batch"}, headers={"X-Tenant": "globex"})
    (event,) = usage(usage_log)
    assert (event["tenant"], event["key_id"], event["service_class"]) == ("globex", "", "batch")
