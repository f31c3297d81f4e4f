"""A server whose processes are killed, stopped and drained under load."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.hash_executor import expected
from tests.support.hash_server import (
    ENGINE,
    FRONT_END,
    PATIENCE,
    TOKENIZER,
    HashServer,
    hash_server,
    nothing_left,
    starting_hash_server,
    until,
)

STEP = 0.01  # seconds that a step takes
LONG = {"prompt": [72, 101, 108], "max_tokens": 150, "stream": True, "return_token_ids": True}


@dataclass
class Stream:
    """What a client saw of a stream: its tokens, and how it ended."""

    tokens: list[int] = field(default_factory=list)
    error: str | None = None  # the code of an error event
    done: bool = False
    broken: bool = False

    async def read(self, client: httpx.AsyncClient) -> None:
        try:
            # Of two front ends one may know of a new engine before the other: who is told to come again does.
            while await self._refused(client):
                await asyncio.sleep(0.05)
        except httpx.HTTPError:
            self.broken = True

    async def _refused(self, client: httpx.AsyncClient) -> bool:
        async with client.stream("POST", "/v1/completions", json=LONG) as reply:
            async for line in reply.aiter_lines():
                self._take(line)
            return reply.status_code == 503

    def _take(self, line: str) -> None:
        if not line.startswith("data: "):
            return
        if line == "data: [DONE]":
            self.done = True
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            self.error = event["error"]["code"]
            return
        for choice in event["choices"]:
            self.tokens += choice.get("token_ids") or []


def client_of(server: HashServer) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=server.http, timeout=PATIENCE, limits=limits)


async def open_streams(client: httpx.AsyncClient, count: int) -> tuple[list[Stream], list[asyncio.Task[None]]]:
    """So many streams, each past its first token."""
    streams = [Stream() for _ in range(count)]
    tasks = [asyncio.create_task(stream.read(client)) for stream in streams]
    async with asyncio.timeout(PATIENCE):
        while not all(stream.tokens for stream in streams):
            await asyncio.sleep(0.01)
    return streams, tasks


async def first_refusals(client: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
    """What a request and a probe are told while the engine is started again, however long that takes."""
    seen: dict[str, httpx.Response] = {}
    async with asyncio.timeout(PATIENCE):
        while len(seen) < 2:
            for path, reply in (
                ("/v1/completions", await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})),
                ("/ready", await client.get("/ready")),
            ):
                if reply.status_code != 200 and "is started again" in reply.text:
                    seen.setdefault(path, reply)
            assert (await client.get("/health")).status_code == 200
    return seen["/v1/completions"], seen["/ready"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    """Two front ends with a tokenizer process each, for the tests that leave the server as it was."""
    settings = {"frontends": 2, "tokenizer_processes": 1, "ready_timeout": 1.0, "drain_timeout": 20.0}
    folder = tmp_path_factory.mktemp("server")
    with hash_server(folder, settings, step_seconds=STEP, max_num_seqs=64, num_pages=4001) as running:
        yield running


async def test_the_engine_is_killed_under_64_streams(server: HashServer) -> None:
    family = len(server.family())
    async with client_of(server) as client:
        streams, tasks = await open_streams(client, 64)
        asking = asyncio.create_task(first_refusals(client))
        os.kill(server.pids(ENGINE)[0], signal.SIGKILL)
        await asyncio.gather(*tasks)
        wanted = expected([72, 101, 108], 150, vocab=260)
        assert all(stream.done and stream.tokens == wanted for stream in streams), "they resume in the next engine"
        refused, unready = await asking
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_dead")
        assert int(refused.headers["retry-after"]) >= 1
        assert unready.status_code == 503
    server.until_ready()
    until(lambda: len(server.family()) == family)
    async with client_of(server) as client:
        streams, tasks = await open_streams(client, 2)
        await asyncio.gather(*tasks)
    assert [stream.tokens for stream in streams] == [wanted, wanted]
    values = server.until_idle()
    assert values["process_restarts_total"] >= 1.0


async def test_a_front_end_is_killed(server: HashServer) -> None:
    ports = server.ports()
    async with client_of(server) as client:
        streams, tasks = await open_streams(client, 24)
        victim, survivor = server.pids(FRONT_END)
        os.kill(victim, signal.SIGKILL)
        await asyncio.gather(*tasks)
    broken = [stream for stream in streams if stream.broken]
    whole = [stream for stream in streams if stream.done]
    assert len(broken) + len(whole) == 24
    wanted = expected([72, 101, 108], 150, vocab=260)
    assert all(stream.tokens == wanted for stream in whole)
    until(lambda: len(server.pids(FRONT_END)) == 2 and victim not in server.pids(FRONT_END))
    assert survivor in server.pids(FRONT_END)
    until(lambda: len(psutil.Process(_other(server, survivor)).net_connections()) > 0)
    assert server.ports() == ports
    server.until_ready()
    server.until_idle()


def _other(server: HashServer, survivor: int) -> int:
    return next(pid for pid in server.pids(FRONT_END) if pid != survivor)


async def test_tokenizer_processes_are_killed(server: HashServer) -> None:
    until(lambda: len(server.pids(TOKENIZER)) == 2)
    async with client_of(server) as client:

        async def ask(number: int) -> tuple[int, dict[str, int]]:
            reply = await client.post("/v1/completions", json={"prompt": "hello" * 3, "max_tokens": 2})
            return reply.status_code, reply.json()["usage"]

        asking = [asyncio.create_task(ask(number)) for number in range(100)]
        await asyncio.sleep(0.05)
        for pid in server.pids(TOKENIZER):
            os.kill(pid, signal.SIGKILL)
        replies = await asyncio.gather(*asking)
        assert {status for status, _ in replies} == {200}
        assert len({usage["prompt_tokens"] for _, usage in replies}) == 1
    until(lambda: len(server.pids(TOKENIZER)) == 2)
    server.until_idle()


async def test_a_stopped_engine_is_not_ready(server: HashServer) -> None:
    (engine,) = server.pids(ENGINE)
    async with client_of(server) as client:
        streams, tasks = await open_streams(client, 4)
        os.kill(engine, signal.SIGSTOP)
        try:
            until(
                lambda: "has not turned" in httpx.get(f"{server.http}/ready", timeout=60).text
            )  # front ends learn it one by one
            assert (await client.get("/health")).status_code == 200
        finally:
            os.kill(engine, signal.SIGCONT)
        server.until_ready()
        await asyncio.gather(*tasks)
    assert all(stream.tokens == expected([72, 101, 108], 150, vocab=260) for stream in streams)
    assert server.pids(ENGINE) == [engine]


async def test_1000_clients_that_go_away(server: HashServer) -> None:
    dice = random.Random(5)
    before = server.until_idle()["requests_received_total"]

    async def visit(client: httpx.AsyncClient, stream: bool, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await client.post("/v1/completions", json={**LONG, "stream": stream, "n": dice.choice((1, 3))})
        except (TimeoutError, httpx.HTTPError):
            pass

    async with client_of(server) as client:
        for _ in range(10):
            await asyncio.gather(*(visit(client, dice.random() < 0.7, dice.uniform(0.0, 1.0)) for _ in range(100)))
    values = server.until_idle()
    assert values["requests_aborted_total"] > 0
    assert values["requests_received_total"] - before > 500
    async with client_of(server) as client:
        (stream,), tasks = await open_streams(client, 1)
        await asyncio.gather(*tasks)
    assert stream.done


async def test_drain_lets_streams_finish(tmp_path: Path) -> None:
    with hash_server(tmp_path, {"frontends": 2}, step_seconds=STEP) as server:
        family, ports = server.family(), server.ports()
        async with client_of(server) as client:
            streams, tasks = await open_streams(client, 8)
            server.popen.send_signal(signal.SIGTERM)
            until(lambda: not server.is_ready())
            refused = await client.post("/v1/completions", json={"prompt": "x"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            await asyncio.gather(*tasks)
        assert all(stream.done and len(stream.tokens) == 150 for stream in streams)
        assert server.popen.wait(PATIENCE) == 0
        nothing_left(family, ports)
        assert server.out.read_text().count("\n") == 1


async def test_a_second_signal_ends_it_now(tmp_path: Path) -> None:
    with hash_server(tmp_path, {"drain_timeout": 600.0}, step_seconds=0.2) as server:
        family, ports = server.family(), server.ports()
        async with client_of(server) as client:
            streams, tasks = await open_streams(client, 4)
            server.popen.send_signal(signal.SIGINT)
            until(lambda: not server.is_ready())
            server.popen.send_signal(signal.SIGINT)
            await asyncio.gather(*tasks)
        assert {stream.error for stream in streams} == {"draining"}
        assert server.popen.wait(PATIENCE) == 0
        nothing_left(family, ports)


async def test_the_supervisor_is_killed(tmp_path: Path) -> None:
    with hash_server(tmp_path, {"tokenizer_processes": 1}, step_seconds=STEP) as server:
        until(lambda: server.pids(TOKENIZER))
        family, ports = server.family(), server.ports()
        assert len(family) == 4
        async with client_of(server) as client:
            streams, tasks = await open_streams(client, 4)
            server.popen.kill()
            await asyncio.gather(*tasks)
        assert all(stream.broken for stream in streams)
        server.popen.wait()
        nothing_left(family, ports)


def test_an_engine_that_never_lasts_ends_the_server(tmp_path: Path) -> None:
    """It ends without a request in it."""
    with hash_server(tmp_path, {"max_engine_restarts": 1}) as server:
        family, ports = server.family(), server.ports()
        for _ in range(2):
            server.until_ready()
            (engine,) = server.pids(ENGINE)
            os.kill(engine, signal.SIGKILL)
            until(lambda engine=engine: engine not in server.pids(ENGINE))  # type: ignore[misc]
        assert server.popen.wait(PATIENCE) == 2
        assert "jaxserve: the engine ended 2 times in a row" in server.err.read_text()
        nothing_left(family, ports)


@pytest.mark.parametrize(("module", "words"), [(ENGINE, "cannot be started"), (FRONT_END, "before it was a process")])
def test_a_machine_that_has_no_process_to_give_for_a_while(tmp_path: Path, module: str, words: str) -> None:
    with hash_server(tmp_path) as server:
        supervisor = psutil.Process(server.popen.pid)
        few, many = supervisor.rlimit(psutil.RLIMIT_NOFILE)
        supervisor.rlimit(psutil.RLIMIT_NOFILE, (3, many))
        os.kill(server.pids(module)[0], signal.SIGKILL)
        until(lambda: server.err.read_text().count(words) > 1)  # a second passes, in which the runtime directory is looked at
        supervisor.rlimit(psutil.RLIMIT_NOFILE, (few, many))
        server.until_ready()
        assert server.popen.poll() is None
        assert server.stop() == 0


async def test_a_server_that_gives_up_says_why_and_writes_its_bill(tmp_path: Path) -> None:
    log = tmp_path / "usage.jsonl"
    with hash_server(tmp_path, {"max_engine_restarts": 0, "usage_log": str(log)}, step_seconds=STEP) as server:
        family, ports = server.family(), server.ports()
        async with client_of(server) as client:
            streams, tasks = await open_streams(client, 8)
            os.kill(server.pids(ENGINE)[0], signal.SIGKILL)
            await asyncio.gather(*tasks)
        assert {stream.error for stream in streams} == {"engine_dead"}
        assert await asyncio.to_thread(server.popen.wait, PATIENCE) == 2
        assert "killed by SIGKILL (probably out of memory" in server.err.read_text()
        billed = sum(json.loads(line)["completion_tokens"] for line in log.read_text().splitlines())
        assert billed == sum(len(stream.tokens) for stream in streams)
        nothing_left(family, ports)


def test_what_keeps_the_engine_from_being_built_ends_the_server(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="jaxserve: no such model"), hash_server(tmp_path, refuses_to_build="no such model"):
        pass


def test_what_keeps_front_ends_from_listening_ends_the_server(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"jaxserve: .*no-such-keys"), hash_server(tmp_path, {"keys": "/no-such-keys"}):
        pass


def test_a_signal_during_the_start(tmp_path: Path) -> None:
    with starting_hash_server(tmp_path, build_seconds=600.0) as server:
        until(lambda: server.pids(ENGINE) and server.pids(FRONT_END))
        family = server.family()
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(PATIENCE) == 0
        nothing_left(family, [])
        assert server.out.read_text() == ""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_front_ends_hold_no_jax(server: HashServer) -> None:
    for pid in server.pids(FRONT_END):
        assert "jaxlib" not in Path(f"/proc/{pid}/maps").read_text()
