"""grpc.health.v1.Health: by service, and as the engine is."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1.health_pb2_grpc import HealthStub

from jaxserve.errors import EngineDeadError
from tests.support.scripted import ScriptedClient
from tests.support.serving import serving

SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING
GENERATING = ("", "jaxserve.v1.Inference", "inference.GRPCInferenceService", "vllm.grpc.engine.VllmEngine")


async def statuses(channel: grpc.aio.Channel) -> dict[str, int]:
    stub = HealthStub(channel)
    return {name: (await stub.Check(pb.HealthCheckRequest(service=name))).status for name in (*GENERATING, "jaxserve.v1.Admin")}


async def test_every_service_serves(channel: grpc.aio.Channel) -> None:
    assert set((await statuses(channel)).values()) == {SERVING}


async def test_services_that_generate_end_with_the_engine(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.check_health = dead  # type: ignore[method-assign]
    assert await statuses(channel) == {**dict.fromkeys(GENERATING, NOT_SERVING), "jaxserve.v1.Admin": SERVING}
    del engine.check_health  # another one was started
    assert set((await statuses(channel)).values()) == {SERVING}


def dead() -> None:
    raise EngineDeadError("it died")


async def test_balancers_are_sent_elsewhere_before_the_engine_drains() -> None:
    engine = SlowToDrain()
    async with serving(engine) as servers, grpc.aio.insecure_channel(servers.grpc) as channel:
        stopping = asyncio.create_task(servers.servers.stop())
        await engine.asked.wait()
        draining, seen = engine.draining, await statuses(channel)
        engine.may_drain.set()
        await stopping
    assert not draining
    assert seen == {**dict.fromkeys(GENERATING, NOT_SERVING), "jaxserve.v1.Admin": SERVING}


class SlowToDrain(ScriptedClient):
    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_drain = asyncio.Event(), asyncio.Event()

    async def drain(self, timeout: float) -> None:
        self.asked.set()
        await self.may_drain.wait()
        await super().drain(timeout)


async def test_an_unknown_service(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await HealthStub(channel).Check(pb.HealthCheckRequest(service="nobody"))
    assert info.value.code() is grpc.StatusCode.NOT_FOUND
    watch = HealthStub(channel).Watch(pb.HealthCheckRequest(service="nobody"))
    assert (await watch.read()).status == pb.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


async def test_watching(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    watch = HealthStub(channel).Watch(pb.HealthCheckRequest())
    async with asyncio.timeout(60):
        assert (await watch.read()).status == SERVING
        engine.draining = True
        assert (await watch.read()).status == NOT_SERVING
        engine.draining = False
        assert (await watch.read()).status == SERVING
    watch.cancel()


async def test_watching_ends_with_the_server(engine: ScriptedClient) -> None:
    async with serving(engine) as servers, grpc.aio.insecure_channel(servers.grpc) as channel:
        watch = HealthStub(channel).Watch(pb.HealthCheckRequest())
        await watch.read()
        await servers.servers.stop()
        async with asyncio.timeout(60):
            while (reply := await watch.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
                assert reply.status == NOT_SERVING
        assert await watch.code() is grpc.StatusCode.OK
