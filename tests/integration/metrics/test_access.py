"""One line in the log for each exchange."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc.aio
import httpx
import pytest

from jaxserve.config.server import ServerConfig
from jaxserve.logs import FIELDS
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from server.run import Servers
from tests.support.scripted import ScriptedClient

LOGGER = "server.observe.access"
PROMPT = "tell nobody"


@pytest.fixture
async def addresses():
    servers = Servers(ScriptedClient(), ServerConfig(port=0, grpc_port=0))
    yield await servers.start()
    await servers.stop()


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [getattr(record, FIELDS) for record in caplog.records if record.name == LOGGER]


async def both_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Of two exchanges: gRPC's come when the call is over, which the caller may know first."""
    async with asyncio.timeout(30):
        while len(found := lines(caplog)) < 2:
            await asyncio.sleep(0.01)
    return found


@pytest.mark.parametrize("stream", [False, True])
async def test_a_completion(addresses, caplog, stream: bool) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    headers = {"x-request-id": "mine", "x-tenant": "acme", "authorization": "Bearer secret"}
    body = {"prompt": [PROMPT, "hi"], "max_tokens": 3, "stream": stream}
    async with httpx.AsyncClient(base_url=addresses.http, headers=headers, timeout=30) as client:
        assert (await client.post("/v1/completions", json=body)).status_code == 200
    [line] = lines(caplog)
    assert line["ttft"] <= line["seconds"] < 30
    assert set(str(line["finish_reason"]).split(",")) == {"length", "stop"}
    assert {name: value for name, value in line.items() if name not in ("ttft", "seconds", "finish_reason")} == {
        "surface": "http",
        "method": "POST",
        "route": "/v1/completions",
        "status": 200,
        "request_id": "mine",
        "tenant": "acme",
        "prompt_tokens": 13,
        "cached_tokens": 6,
        "output_tokens": 5,
    }
    assert not {"secret", PROMPT, "tel"} & {str(value) for value in line.values()}


async def test_what_fails_has_a_line_too(addresses, caplog) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with httpx.AsyncClient(base_url=addresses.http, timeout=30) as client:
        await client.post("/v1/completions", json={"prompt": "x", "top_p": 7})
        await client.get("/v1/models/other")
        await client.get("/health")  # asked by machines: only for those who debug
    assert [(line["route"], line["status"]) for line in lines(caplog)] == [
        ("/v1/completions", 400),
        ("/v1/models/{name:path}", 404),
    ]
    assert all("tenant" not in line for line in lines(caplog))


async def test_a_call(addresses, caplog) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with grpc.aio.insecure_channel(addresses.grpc.removeprefix("grpc://")) as channel:
        stub = InferenceStub(channel)
        request = pb.GenerateRequest(text="hello", stopping=pb.Stopping(max_tokens=2))
        assert [event async for event in stub.Generate(request, metadata=(("x-request-id", "mine"), ("x-tenant", "acme")))]
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.GetModelInfo(pb.GetModelInfoRequest(model="other"))
    generate, info = await both_lines(caplog)
    assert (generate["route"], generate["tenant"]) == ("/jaxserve.v1.Inference/Generate", "acme")
    assert (generate["status"], generate["grpc_status"]) == (0, "OK")
    assert (generate["output_tokens"], generate["finish_reason"]) == (2, "length")
    assert generate["request_id"] == "mine"
    assert str(info["request_id"]).startswith("req-")  # made up
    assert (info["route"], info["grpc_status"]) == ("/jaxserve.v1.Inference/GetModelInfo", "NOT_FOUND")
    assert info["status"] == grpc.StatusCode.NOT_FOUND.value[0]


async def test_what_the_engine_never_saw_names_its_tenant_too(addresses, caplog) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with httpx.AsyncClient(base_url=addresses.http, headers={"x-tenant": "acme" + "e" * 500}, timeout=30) as client:
        await client.post("/v1/completions", json={"prompt": "x", "top_p": 7})
    [line] = lines(caplog)
    assert str(line["tenant"]).startswith("acme")
    assert len(str(line["tenant"])) <= 128
