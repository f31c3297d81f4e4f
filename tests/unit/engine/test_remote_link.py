"""A link to an engine of another machine, whose clock is another one: a bare socket is in the engine's place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio

from jaxserve.engine.link import EngineLoad
from jaxserve.engine.remote.codec import encode
from jaxserve.engine.remote.link import RemoteLink
from jaxserve.engine.remote.messages import (
    Add,
    FromEngine,
    FromFrontend,
    Hello,
    Ping,
    Pong,
    Turned,
    Welcome,
    decode_from_frontend,
)
from jaxserve.errors import ConfigError
from tests.unit.engine.replicas.scripted import DESCRIPTION, request

pytestmark = pytest.mark.asyncio

AHEAD = 5000.0  # seconds
PATIENCE = 10.0


class FarEngine:
    def __init__(self, router: zmq.asyncio.Socket, address: str) -> None:
        self.router = router
        self.address = address
        self.client = b""

    async def hear(self) -> FromFrontend:
        async with asyncio.timeout(PATIENCE):
            self.client, content = await self.router.recv_multipart()
        return decode_from_frontend(content)

    async def say(self, message: FromEngine) -> None:
        await self.router.send_multipart((self.client, encode(message)))


@asynccontextmanager
async def far_engine() -> AsyncIterator[FarEngine]:
    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        yield FarEngine(router, f"tcp://127.0.0.1:{port}")


async def test_times_of_another_machines_engine_are_by_its_clock_there_and_by_ours_here() -> None:
    async with far_engine() as engine:
        link = RemoteLink(engine.address)
        described = asyncio.create_task(link.described())
        assert isinstance(await engine.hear(), Hello)
        await engine.say(Welcome(DESCRIPTION))
        await engine.say(Turned(time.monotonic() + AHEAD, EngineLoad(running=3)))
        ping = await engine.hear()
        assert isinstance(ping, Ping)
        assert not described.done(), "requests have times, so an engine is found with its clock"
        await engine.say(Pong(ping.sent, time.monotonic() + AHEAD))
        async with asyncio.timeout(PATIENCE):
            assert await described == DESCRIPTION
        off = (time.monotonic() - ping.sent) / 2

        now = time.monotonic()
        link.add([request("r", queue_deadline=now + 7.0)])
        added = await engine.hear()
        assert isinstance(added, Add)
        assert added.requests[0].arrival == pytest.approx(AHEAD, abs=off)
        assert added.requests[0].queue_deadline == pytest.approx(now + 7.0 + AHEAD, abs=off)
        assert added.requests[0].deadline == float("inf")

        await engine.say(Turned(now + AHEAD, EngineLoad(running=4)))
        async with asyncio.timeout(PATIENCE):
            while link.load().running != 4:
                await asyncio.sleep(0.001)
        assert link.heartbeat == pytest.approx(now, abs=off)
        await link.close()


async def test_its_clock_is_read_again_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxserve.engine.remote.link.PING_SECONDS", 0.0)
    async with far_engine() as engine:
        link = RemoteLink(engine.address)
        await engine.hear()
        await engine.say(Welcome(DESCRIPTION))
        for _ in range(3):
            ping = await engine.hear()
            assert isinstance(ping, Ping)
            await engine.say(Pong(ping.sent, time.monotonic()))
            await engine.say(Turned(time.monotonic(), EngineLoad()))
        await link.close()


async def test_another_machine_is_not_connected_to_without_its_key() -> None:
    with pytest.raises(ConfigError, match="keys"):
        RemoteLink("tcp://10.0.0.1:5000")
