"""jaxserve.v1.Admin against real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from jaxserve.engine.client import EngineStats
from jaxserve.proto import admin_pb2 as pb
from jaxserve.proto.admin_pb2_grpc import AdminStub
from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving, serving

STATS = EngineStats(
    running=1,
    waiting=2,
    pages_total=30,
    pages_free=4,
    received=105,
    active=6,
    finished=70,
    aborted=18,
    rejected=11,
    preemptions=12,
    lost_tokens=13,
    prefix_queried_tokens=15,
    prefix_hit_tokens=14,
)


@pytest.fixture
async def servers(engine: ScriptedClient) -> AsyncIterator[Serving]:
    """Of one test: some ask for a drain."""
    async with serving(engine) as running:
        yield running


async def test_the_load_is_the_engines(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.stats = lambda: STATS  # type: ignore[method-assign]
    load = await AdminStub(channel).GetLoad(pb.GetLoadRequest())
    assert load.accepting
    for name in set(EngineStats.__slots__) & set(load.DESCRIPTOR.fields_by_name):
        assert getattr(load, name) == getattr(STATS, name), name
    engine.draining = True
    assert not (await AdminStub(channel).GetLoad(pb.GetLoadRequest())).accepting


async def test_the_load_is_watched(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    watch = AdminStub(channel).WatchLoad(pb.WatchLoadRequest(interval=0.01))
    assert (await watch.read()).running == 0
    engine.stats = lambda: STATS  # type: ignore[method-assign]
    async with asyncio.timeout(60):
        while (await watch.read()).running == 0:
            pass
    assert [(await watch.read()).running for _ in range(3)] == [1, 1, 1]
    watch.cancel()


@pytest.mark.parametrize("interval", [0.0, -1.0, 0.001, float("nan"), float("inf")])
async def test_intervals_that_make_no_sense(channel: grpc.aio.Channel, interval: float) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await AdminStub(channel).WatchLoad(pb.WatchLoadRequest(interval=interval)).read()
    found = error_details_pb2.BadRequest()
    assert rpc_status.from_call(cast(Any, info.value)).details[0].Unpack(found)
    assert (info.value.code(), found.field_violations[0].field) == (grpc.StatusCode.INVALID_ARGUMENT, "interval")


async def test_intervals_are_kept(channel: grpc.aio.Channel) -> None:
    watch = AdminStub(channel).WatchLoad(pb.WatchLoadRequest(interval=3600.0))
    await watch.read()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await watch.read()


async def test_watching_ends_with_the_server(engine: ScriptedClient) -> None:
    async with serving(engine) as servers, grpc.aio.insecure_channel(servers.grpc) as channel:
        watch = AdminStub(channel).WatchLoad(pb.WatchLoadRequest(interval=3600.0))
        await watch.read()
        await servers.servers.stop()
        async with asyncio.timeout(60):
            assert await watch.read() is grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
        assert await watch.code() is grpc.StatusCode.OK


async def test_the_prefix_cache_is_flushed(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    await AdminStub(channel).FlushPrefixCache(pb.FlushPrefixCacheRequest())
    assert engine.resets == 1


async def test_a_drain_is_asked_for(channel: grpc.aio.Channel, servers: Serving) -> None:
    assert not servers.servers.drain_asked.is_set()
    for _ in range(2):
        await AdminStub(channel).Drain(pb.DrainRequest())
        assert servers.servers.drain_asked.is_set()


@pytest.mark.parametrize("method", ["GetLoad", "WatchLoad", "Drain", "FlushPrefixCache"])
async def test_what_is_no_message_does_nothing(
    channel: grpc.aio.Channel, engine: ScriptedClient, servers: Serving, method: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await channel.unary_unary(f"/jaxserve.v1.Admin/{method}", None, None)(b"\xff\xff")
    assert info.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert engine.resets == 0
    assert not servers.servers.drain_asked.is_set()
