"""Engines that stand still: stopped as a process, or stuck in a step."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.hash_server import ENGINE, PATIENCE, HashServer, hash_server, until

HANG_SECONDS = 3.0  # after which an engine is replaced
TIMEOUTS = {"ready_timeout": 1.0, "engine_hang_timeout": HANG_SECONDS}
PROMPT: dict[str, Any] = {"prompt": [72, 101, 108], "max_tokens": 150}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    """A server that never replaces its engine, which is stopped."""
    settings = {"ready_timeout": 1.0, "engine_hang_timeout": 0.0}
    with hash_server(tmp_path_factory.mktemp("stopped"), settings) as server:
        (engine,) = server.pids(ENGINE)
        assert httpx.post(f"{server.http}/v1/completions", json=PROMPT, timeout=PATIENCE).status_code == 200
        os.kill(engine, signal.SIGSTOP)
        yield server
        assert server.pids(ENGINE) == [engine]


async def ask(client: httpx.AsyncClient, **given: Any) -> dict[str, Any]:
    """The error that a request ends with."""
    reply = await client.post("/v1/completions", json=PROMPT | given)
    if reply.status_code == 200:  # a stream that began
        (line,) = [line for line in reply.text.splitlines() if line.startswith("data: ")]
        error = line.removeprefix("data: ")
        reply = httpx.Response(504, text=error)
    assert reply.status_code == 504, reply.text
    return dict(reply.json()["error"])


async def test_deadlines_hold_while_the_engine_stands_still(stopped: HashServer) -> None:
    async with httpx.AsyncClient(base_url=stopped.http, timeout=PATIENCE) as client:
        errors = await asyncio.gather(
            ask(client, queue_timeout=0.3),
            ask(client, queue_timeout=0.3, stream=True),
            ask(client, timeout=0.4),
            ask(client, timeout=0.4, stream=True),
            ask(client, timeout=0.4, queue_timeout=25.0),
        )
    assert {error["code"] for error in errors} == {"deadline_exceeded"}
    assert [error["param"] for error in errors] == ["queue_timeout", "queue_timeout", "timeout", "timeout", "timeout"]


async def test_nobody_is_sent_to_an_engine_that_stands_still(stopped: HashServer) -> None:
    async with httpx.AsyncClient(base_url=stopped.http, timeout=PATIENCE) as client:
        while (reply := await client.get("/ready")).status_code == 200:
            await asyncio.sleep(0.02)
        assert re.match("nothing was heard of the engine|the engine's loop has not turned", reply.json()["error"]["message"])
        deep = await client.get("/health/deep")
        assert (deep.status_code, deep.json()["error"]["code"]) == (503, reply.json()["error"]["code"])
        assert (await client.get("/health")).status_code == 200
    async with grpc.aio.insecure_channel(stopped.grpc) as channel:
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_requests_that_run_when_the_engine_stops_keep_their_deadlines(tmp_path: Path) -> None:
    with hash_server(tmp_path, {"ready_timeout": 1.0, "engine_hang_timeout": 0.0}, step_seconds=0.02) as server:
        (engine,) = server.pids(ENGINE)
        lines: list[str] = []
        async with httpx.AsyncClient(base_url=server.http, timeout=PATIENCE) as client:
            body = PROMPT | {"timeout": 2.0, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as reply:
                async for line in reply.aiter_lines():
                    if not lines and line.startswith("data: "):
                        os.kill(engine, signal.SIGSTOP)
                    lines.append(line)
        assert any("did not end in time" in line for line in lines)
        os.kill(engine, signal.SIGCONT)
        server.until_ready()
        assert server.until_idle()["requests_aborted_total"] == 1


@pytest.mark.parametrize("faults", [{}, {"hangs_at": 5}], ids=["the process is stopped", "a step never ends"])
async def test_an_engine_that_hangs_is_replaced(tmp_path: Path, faults: dict[str, int]) -> None:
    """Its stream resumes; if the next engine hangs with that alone, too, it ends with an error."""
    with hash_server(tmp_path, TIMEOUTS, step_seconds=0.01, **faults) as server:
        (engine,) = server.pids(ENGINE)
        ends: list[str] = []
        async with (
            httpx.AsyncClient(base_url=server.http, timeout=PATIENCE) as client,
            client.stream("POST", "/v1/completions", json=PROMPT | {"stream": True}) as reply,
        ):
            async for line in reply.aiter_lines():
                if not ends and not faults:
                    os.kill(engine, signal.SIGSTOP)
                ends.append(line)
        assert any(('"engine_killed_by_request"' if faults else "[DONE]") in line for line in ends), ends[-3:]
        until(lambda: server.pids(ENGINE) not in ([], [engine]))
        server.until_ready()
        assert server.metrics()["engine_hangs_total"] == 1 + len(faults)
        assert "the engine's loop did not turn for" in server.err.read_text()
        short = PROMPT | {"max_tokens": 2}
        assert httpx.post(f"{server.http}/v1/completions", json=short, timeout=PATIENCE).status_code == 200


async def test_a_stopped_engine_is_unready_at_once_and_replaced_long_before_its_hang_timeout(tmp_path: Path) -> None:
    with hash_server(tmp_path, {"engine_hang_timeout": 600.0, "ready_timeout": 600.0}) as server:
        (engine,) = server.pids(ENGINE)
        os.kill(engine, signal.SIGSTOP)
        async with httpx.AsyncClient(base_url=server.http, timeout=PATIENCE) as client:
            while (reply := await client.get("/ready")).status_code == 200:
                await asyncio.sleep(0.02)
        assert "nothing was heard of the engine" in reply.json()["error"]["message"]
        until(lambda: server.pids(ENGINE) not in ([], [engine]))
        server.until_ready()
        assert "gave no pulse for" in server.err.read_text()


def test_starts_and_steps_that_are_long_are_left_alone(tmp_path: Path) -> None:
    with hash_server(tmp_path, TIMEOUTS, build_seconds=HANG_SECONDS + 0.5, step_seconds=HANG_SECONDS / 2) as server:
        (engine,) = server.pids(ENGINE)
        assert httpx.post(f"{server.http}/v1/completions", json=PROMPT | {"max_tokens": 3}, timeout=PATIENCE).status_code == 200
        assert server.pids(ENGINE) == [engine]
        assert server.metrics()["engine_hangs_total"] == 0
