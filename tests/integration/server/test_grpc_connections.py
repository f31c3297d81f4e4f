"""Limits of gRPC connections, as configured."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from tests.support.scripted import ScriptedClient
from tests.support.serving import serving

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
HEADER_BYTES = 9
PING, ACK = 6, 1


@pytest.mark.parametrize(("mib", "code"), [(1, grpc.StatusCode.RESOURCE_EXHAUSTED), (3, grpc.StatusCode.INVALID_ARGUMENT)])
async def test_the_largest_request(mib: int, code: grpc.StatusCode) -> None:
    async with (
        serving(ScriptedClient(), grpc_max_message_mib=mib) as servers,
        grpc.aio.insecure_channel(servers.grpc) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as info:
            await InferenceStub(channel).Generate(pb.GenerateRequest(text="x" * (2 * 2**20))).read()
    assert info.value.code() is code  # where it may be so large, it is too long for the model


async def test_silent_clients_are_asked_whether_they_live() -> None:
    async with serving(ScriptedClient(), grpc_keepalive=1.0) as servers:
        host, _, port = servers.grpc.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREFACE + SETTINGS)
        async with asyncio.timeout(60):
            while True:
                header = await reader.readexactly(HEADER_BYTES)
                await reader.readexactly(int.from_bytes(header[:3]))
                if header[3] == PING and not header[4] & ACK:
                    break
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_does_not_read_is_given_up() -> None:
    engine = ScriptedClient()
    small = [("grpc.http2.bdp_probe", 0)]  # else a client on loopback takes megabytes
    async with (
        serving(engine, unread_timeout=0.5) as servers,
        grpc.aio.insecure_channel(servers.grpc, options=small) as channel,
        grpc.aio.insecure_channel(servers.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as other,
    ):
        request = pb.GenerateRequest(text="x" * 200, sampling=pb.Sampling(n=8), output=pb.Output(logprobs=20))
        request.stopping.max_tokens = 200
        slow = InferenceStub(channel).Generate(request)
        assert (await slow.read()).HasField("started")
        assert engine.active
        async with asyncio.timeout(20):
            while engine.active:
                await asyncio.sleep(0.01)
        assert len(engine.aborted) == 1
        assert len([event async for event in InferenceStub(other).Generate(pb.GenerateRequest(text="ab"))]) == 4
        with pytest.raises(grpc.aio.AioRpcError, match="unread_timeout") as info:
            await _read_on(slow)
        assert info.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def _read_on(call: grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateEvent]) -> None:
    async with asyncio.timeout(20):
        while await call.read():
            pass
