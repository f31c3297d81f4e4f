"""gRPC of a real server process: what people's programs send it, Triton's client and garbage among them."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest

from jaxserve.proto import admin_pb2, inference_pb2, kserve_pb2, vllm_engine_pb2
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.admin_pb2_grpc import AdminStub
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from tests.support.serve_process import ROOT, Process, Served

SMALL = ("--max-num-seqs", "4", "--max-num-batched-tokens", "32")
SECONDS = 60


@pytest.fixture(scope="module")
def process(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    yield from served(tmp_path_factory.mktemp("served"), *SMALL)


@pytest.fixture
async def channel(process: Process) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(process.grpc) as channel:
        yield channel


async def text_of(channel: grpc.aio.Channel) -> str:
    request = pb.GenerateRequest(text="1 2 3 4", sampling={"temperature": 0}, stopping={"max_tokens": 6})
    return "".join([event.delta.text async for event in InferenceStub(channel).Generate(request)])


async def at_rest(channel: grpc.aio.Channel) -> admin_pb2.Load:
    """The load once nothing runs any more."""
    async with asyncio.timeout(SECONDS):
        while True:
            load: admin_pb2.Load = await AdminStub(channel).GetLoad(admin_pb2.GetLoadRequest())
            if load.active == load.running == load.waiting == 0:
                assert load.pages_free == load.pages_total
                assert load.received == load.finished + load.aborted + load.rejected
                return load
            await asyncio.sleep(0.02)


async def test_tritons_client(process: Process, channel: grpc.aio.Channel) -> None:
    program = [sys.executable, str(ROOT / "tests/support/triton_client.py"), process.grpc, "6"]
    done = await asyncio.to_thread(subprocess.run, program, capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)
    text = await text_of(channel)
    assert text
    assert (seen["live"], seen["ready"], seen["models"], seen["server"]) == (True, True, [True, False], "jaxserve")
    assert "text_input" in seen["inputs"]
    assert seen["config"] == [13, 13] + [1] * (len(seen["inputs"]) - 2)  # strings, then booleans
    assert seen["index"] == [["pico", "READY"]]
    assert seen["succeeded"] >= 1
    assert seen["whole"] == {"text": text, "reason": "length", "tokens": 6}
    assert seen["streamed"]["texts"] == {str(index): text for index in range(3)}
    assert seen["streamed"]["errors"] == ["sampling_parameters.temperature must be between 0.0 and 100.0, got -1"]
    assert seen["failure"].startswith("StatusCode.INVALID_ARGUMENT sampling_parameters.beam_width")


METHODS = [
    f"/{service.full_name}/{method.name}"
    for module in (inference_pb2, admin_pb2, kserve_pb2, vllm_engine_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


@pytest.mark.parametrize("method", METHODS)
async def test_random_bytes_get_a_typed_status(channel: grpc.aio.Channel, method: str) -> None:
    rng = random.Random(method)
    for size in (1, 2, 7, 50, 3000):
        call = channel.stream_stream(method, None, None)(payloads(rng.randbytes(size)), timeout=SECONDS)
        answers = 0
        with suppress(grpc.aio.AioRpcError):
            async for _ in call:
                answers += 1
        code = await call.code()
        if code is grpc.StatusCode.OK:  # others' messages may have more fields than this server knows
            assert answers
            assert not method.startswith("/jaxserve.v1.")
        else:
            assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert (await AdminStub(channel).GetLoad(admin_pb2.GetLoadRequest())).accepting


async def payloads(*given: bytes) -> AsyncIterator[bytes]:
    for payload in given:
        yield payload


@pytest.mark.parametrize(
    ("method", "payload", "code"),
    [
        ("/jaxserve.v1.Inference/Generate", b"\x18\x07", grpc.StatusCode.INVALID_ARGUMENT),  # a number where text should be
        ("/jaxserve.v1.Inference/Generate", b"\x1a\x7f", grpc.StatusCode.INVALID_ARGUMENT),  # it ends too early
        ("/jaxserve.v1.Inference/Generate", bytes(17 * 2**20), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("/jaxserve.v1.Inference/Generate", b"\x22" + b"\x0a" * 50_000, grpc.StatusCode.INVALID_ARGUMENT),
        ("/jaxserve.v1.Inference/Nothing", b"", grpc.StatusCode.UNIMPLEMENTED),
        ("/jaxserve.v2.Inference/Generate", b"", grpc.StatusCode.UNIMPLEMENTED),
        ("/", b"", grpc.StatusCode.UNIMPLEMENTED),
    ],
)
async def test_what_nobody_should_send(channel: grpc.aio.Channel, method: str, payload: bytes, code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await channel.unary_stream(method, None, None)(payload, timeout=SECONDS).read()
    assert info.value.code() is code
    assert await text_of(channel)


async def test_a_prompt_of_a_million_tokens(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="1000000 tokens") as info:
        await InferenceStub(channel).Generate(pb.GenerateRequest(tokens={"ids": [5] * 1_000_000})).read()
    assert info.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_metadata_that_no_server_takes(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await InferenceStub(channel).GetModelInfo(pb.GetModelInfoRequest(), metadata=(("x-tenant", "x" * 100_000),))
    assert info.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await text_of(channel)


async def test_bytes_that_are_no_http2(process: Process, channel: grpc.aio.Channel) -> None:
    host, _, port = process.grpc.rpartition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(20)]
    for sent in (b"GET / HTTP/1.1\r\n\r\n", random.Random(1).randbytes(4096), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 99):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
    assert await text_of(channel)
    for connection in idle:
        connection.close()


async def test_two_hundred_calls_that_are_cancelled(channel: grpc.aio.Channel) -> None:
    before = await at_rest(channel)
    rng = random.Random(0)
    request = pb.GenerateRequest(text="1 2 3 4", stopping={"max_tokens": 400, "ignore_eos": True})

    async def one(events: int) -> None:
        call = InferenceStub(channel).Generate(request)
        for _ in range(events):
            await call.read()
        await asyncio.sleep(rng.random() / 10)
        call.cancel()

    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(one(rng.choice((0, 0, 0, 0, 0, 0, 0, 1, 3))) for _ in range(200)))
    after = await at_rest(channel)
    assert 0 < after.received - before.received <= 200
    assert after.aborted > before.aborted  # not all: a busy client may cancel what has finished
    assert await text_of(channel)


async def test_a_connection_that_breaks_ends_its_requests(process: Process, channel: grpc.aio.Channel) -> None:
    before = await at_rest(channel)
    async with grpc.aio.insecure_channel(process.grpc) as other:
        call = InferenceStub(other).Generate(pb.GenerateRequest(text="1 2", stopping={"max_tokens": 400, "ignore_eos": True}))
        await call.read()
    after = await at_rest(channel)
    assert (after.aborted - before.aborted, after.finished - before.finished) == (1, 0)


@pytest.mark.one_server("an ingress that was drained is started again by the cluster")
def test_drain_ends_the_server_as_sigterm_does(served: Served, tmp_path: Path) -> None:
    for process in served(tmp_path, *SMALL):
        with grpc.insecure_channel(process.grpc) as channel:
            call = InferenceStub(channel).Generate(
                pb.GenerateRequest(text="1 2", stopping={"max_tokens": 40, "ignore_eos": True})
            )
            next(call)
            AdminStub(channel).Drain(admin_pb2.DrainRequest())
            *_, last = call  # what runs is finished
            assert last.finished.usage.completion_tokens == 40
        assert process.popen.wait(30) == 0
