"""Starting and draining both servers in one event loop."""

import asyncio
import os
import signal
import socket

import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jaxserve.config.server import ServerConfig
from jaxserve.errors import ConfigError
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from server.ports import Addresses
from server.processes.supervisor import check_ports
from server.run import serve
from tests.support.scripted import ScriptedClient


class Running:
    """`serve` in a task, with what it said when ready."""

    def __init__(self, client: ScriptedClient, drain_timeout: float) -> None:
        self._ready: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
        config = ServerConfig(port=0, grpc_port=0, drain_timeout=drain_timeout)
        self.task = asyncio.create_task(serve(client, config, self._ready.set_result))

    async def addresses(self) -> Addresses:
        async with asyncio.timeout(60):
            return await self._ready

    async def ended(self) -> None:
        async with asyncio.timeout(60):
            await self.task


async def until(condition: object) -> None:
    async with asyncio.timeout(60):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


async def ask(addresses: Addresses, **fields: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=addresses.http, timeout=10) as client:
        return await client.post("/v1/completions", json={"prompt": "x" * 100, "max_tokens": 100, **fields})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_what_runs_finish_and_refuses_the_rest(number: signal.Signals) -> None:
    engine = ScriptedClient(delay=0.005)
    running = Running(engine, drain_timeout=30.0)
    addresses = await running.addresses()
    first = asyncio.create_task(ask(addresses, stream=True))
    await until(lambda: engine.active)
    os.kill(os.getpid(), number)
    await until(lambda: engine.draining)

    refused = await ask(addresses)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert int(refused.headers["retry-after"]) > 0
    async with httpx.AsyncClient(base_url=addresses.http, timeout=30) as client:
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200  # who drains is not to be killed
        chat = {"messages": [{"role": "user", "content": "x"}]}
        assert (await client.post("/v1/chat/completions", json=chat)).status_code == 503
    async with grpc.aio.insecure_channel(addresses.grpc.removeprefix("grpc://")) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as info:
            await InferenceStub(channel).Generate(pb.GenerateRequest(text="x")).read()
        assert info.value.code() is grpc.StatusCode.UNAVAILABLE
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING

    reply = await first
    assert reply.text.endswith("data: [DONE]\n\n")
    assert reply.text.count('"text":"x"') == 100
    await running.ended()
    assert engine.aborted == []


async def test_what_outlasts_the_drain_gets_an_error() -> None:
    engine = ScriptedClient(delay=0.05)
    running = Running(engine, drain_timeout=0.1)
    addresses = await running.addresses()
    streamed = asyncio.create_task(ask(addresses, stream=True))
    whole = asyncio.create_task(ask(addresses))
    await until(lambda: len(engine.active) == 2)
    os.kill(os.getpid(), signal.SIGTERM)
    assert '"code":"draining"' in (await streamed).text
    assert "[DONE]" not in (await streamed).text
    assert (await whole).status_code == 503
    await running.ended()


async def test_a_second_signal_aborts_at_once() -> None:
    engine = ScriptedClient(delay=0.05)
    running = Running(engine, drain_timeout=600.0)
    first = asyncio.create_task(ask(await running.addresses()))
    await until(lambda: engine.active)
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: engine.draining)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (await first).status_code == 503
    await running.ended()


async def test_an_idle_connection_does_not_hold_the_exit() -> None:
    running = Running(ScriptedClient(), drain_timeout=600.0)
    addresses = await running.addresses()
    async with httpx.AsyncClient(base_url=addresses.http, timeout=30) as client:
        await client.get("/health")
        os.kill(os.getpid(), signal.SIGTERM)
        await running.ended()


@pytest.mark.parametrize("name", ["port", "grpc_port"])
async def test_a_taken_port_names_host_port_and_flag(name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = ServerConfig(**{"port": 0, "grpc_port": 0, name: port})
        flag = "--" + name.replace("_", "-")
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} .*{flag}$") as early:
            check_ports(config)
        assert early.value.param == name
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} .*{flag}$"):
            await serve(ScriptedClient(), config, print)


def test_one_port_for_both_servers_is_refused() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match="--grpc-port"):
        check_ports(ServerConfig(port=port, grpc_port=port))


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(ConfigError, match="--host"):
        check_ports(ServerConfig(host="no.such.host.invalid", allow_unauthenticated=True))
