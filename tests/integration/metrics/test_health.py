"""Liveness, readiness, and the health of everything from the queue to the sampler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from jaxserve.clock import VirtualClock
from jaxserve.config.server import ServerConfig
from jaxserve.errors import EngineDeadError, OverloadedError
from server.observe.deep_health import EVERY_SECONDS, DeepHealth
from server.run import Servers
from tests.support.scripted import ScriptedClient


class Engine(ScriptedClient):
    """A scripted engine whose loop may have stopped, or died."""

    age = 0.0
    dead = False

    def heartbeat_age(self) -> float:
        return self.age

    def check_health(self) -> None:
        super().check_health()
        if self.dead:
            raise EngineDeadError("the engine died")


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    servers = Servers(engine, ServerConfig(port=0, grpc_port=0, ready_timeout=3.0))
    addresses = await servers.start()
    async with httpx.AsyncClient(base_url=addresses.http, timeout=30) as client:
        yield client
    await servers.stop()


async def test_a_server_is_ready_while_the_loop_turns(engine: Engine, http: httpx.AsyncClient) -> None:
    engine.age = 2.9
    assert (await http.get("/ready")).status_code == 200
    engine.age = 3.1
    reply = await http.get("/ready")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_dead")
    assert "3.1 s" in reply.json()["error"]["message"]
    assert int(reply.headers["retry-after"]) > 0
    assert (await http.get("/health")).status_code == 200
    assert "jaxserve:engine_up" + '{model_name="echo"} 0.0' in (await http.get("/metrics")).text


@pytest.mark.parametrize(("state", "code"), [("draining", "draining"), ("dead", "engine_dead")])
async def test_a_server_that_takes_no_requests_lives_but_is_not_ready(
    engine: Engine, http: httpx.AsyncClient, state: str, code: str
) -> None:
    setattr(engine, state, True)
    reply = await http.get("/ready")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, code)
    assert (await http.get("/health")).json() == {"status": "ok"}
    assert (await http.get("/health/deep")).status_code == 503


async def test_deep_health_makes_one_token_for_all_who_ask(engine: Engine, http: httpx.AsyncClient) -> None:
    engine.delay = 0.05
    replies = await asyncio.gather(*(http.get("/health/deep") for _ in range(5)))
    assert [reply.json()["status"] for reply in replies] == ["ok"] * 5
    assert len({reply.json()["seconds"] for reply in replies}) == 1
    [params] = engine.seen
    assert (params.max_tokens, params.temperature) == (1, 0.0)
    assert engine.options[0].service_class == "batch"


async def test_deep_health_is_asked_again_after_a_while() -> None:
    engine, clock = Engine(), VirtualClock(100.0)
    deep = DeepHealth(engine, clock)
    assert await deep.check() == (0.0, 0.0)
    clock.advance(EVERY_SECONDS / 2)
    assert await deep.check() == (0.0, EVERY_SECONDS / 2)
    assert len(engine.seen) == 1
    engine.failure = OverloadedError("busy", retry_after=2.0)
    clock.advance(EVERY_SECONDS / 2)
    for _ in range(2):  # the second is told of the first
        with pytest.raises(OverloadedError, match="busy"):
            await deep.check()
    assert len(engine.seen) == 2
    engine.failure = None
    clock.advance(EVERY_SECONDS)
    assert await deep.check() == (0.0, 0.0)


async def test_who_goes_away_leaves_no_verdict() -> None:
    engine = Engine(delay=30.0)
    deep = DeepHealth(engine, VirtualClock())
    asking = asyncio.create_task(deep.check())
    while not engine.active:
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    engine.dead = True
    with pytest.raises(EngineDeadError):
        await deep.check()
