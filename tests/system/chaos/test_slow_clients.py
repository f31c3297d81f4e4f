"""Clients that read a byte a second, say nothing, or leave, in front of real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import psutil
import pytest

from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from tests.support.hash_executor import expected
from tests.support.hash_server import FRONT_END, PATIENCE, HashServer, hash_server, until

PROMPT, LENGTH, VOCAB = [72, 101, 108], 240, 260
IDLE = 5000
FILES = IDLE + 500
WANTED = expected(PROMPT, LENGTH, vocab=VOCAB)


def _request(**fields: Any) -> bytes:
    body = json.dumps({"prompt": PROMPT, "max_tokens": LENGTH, "stream": True, "return_token_ids": True, **fields}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _connected(server: HashServer, *, buffer: int | None = None) -> socket.socket:
    client = socket.socket()
    if buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.connect(("127.0.0.1", server.ports()[0]))
    return client


def _events(content: bytes) -> list[Any]:
    """Events in the bytes of a chunked stream, a chunk each."""
    lines = [line.removeprefix(b"data: ") for line in content.split(b"\n") if line.startswith(b"data: ")]
    return [line if line == b"[DONE]" else json.loads(line) for line in lines]


def _tokens(events: list[Any], index: int) -> list[int]:
    choices = [choice for event in events if event != b"[DONE]" for choice in event.get("choices", ())]
    return [token for choice in choices if choice["index"] == index for token in choice.get("token_ids") or ()]


async def test_a_client_that_reads_a_byte_a_second_among_32_fast_ones(tmp_path: Path) -> None:
    settings = {"max_unread_tokens": 64, "log_level": "error"}
    with hash_server(tmp_path, settings, step_seconds=0.01, max_num_seqs=64, num_pages=4001) as server:
        (front_end,) = server.pids(FRONT_END)
        slow = _connected(server, buffer=4096)
        slow.sendall(_request(n=2, logprobs=20))
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        got = bytearray()

        async def drip() -> None:
            while True:
                got.extend(await loop.sock_recv(slow, 1))
                await asyncio.sleep(1.0)

        dripping = asyncio.create_task(drip())
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=server.http, timeout=PATIENCE, limits=limits) as client:

            async def fast() -> list[int]:
                fields = {"prompt": PROMPT, "max_tokens": LENGTH, "stream": True, "return_token_ids": True}
                reply = await client.post("/v1/completions", json=fields)
                assert reply.content.endswith(b"data: [DONE]\n\n")
                return _tokens(_events(reply.content), 0)

            assert await asyncio.gather(*(fast() for _ in range(32))) == [WANTED] * 32
        await asyncio.to_thread(until, lambda: _is_empty(server.metrics()))  # of the slow one too, though it reads on
        dripping.cancel()
        assert 0 < len(got) < 100
        while not got.endswith(b"0\r\n\r\n"):
            async with asyncio.timeout(PATIENCE):
                got.extend(await loop.sock_recv(slow, 65536))
        slow.close()
        values = await asyncio.to_thread(server.until_idle)
        assert (values["requests_aborted_total"], values["requests_finished_total"]) == (1.0, 32.0)
        assert server.pids(FRONT_END) == [front_end]
    *events, last = _events(bytes(got))
    assert last["error"]["code"] == "slow_reader"
    tokens = [_tokens(events, index) for index in (0, 1)]
    assert tokens == [WANTED[: len(one)] for one in tokens], "what was read is the beginning"
    assert 0 < len(tokens[0]) < LENGTH


def _is_empty(values: dict[str, float]) -> bool:
    return not (values["num_requests_running"] or values["num_requests_waiting"] or values["kv_cache_usage_perc"])


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"needs {FILES} open files, and {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_5000_idle_connections(tmp_path: Path) -> None:
    with hash_server(tmp_path, {"log_level": "error"}) as server, contextlib.ExitStack() as stack:
        front_end = psutil.Process(server.pids(FRONT_END)[0])
        httpx.post(f"{server.http}/v1/completions", json={"prompt": PROMPT, "max_tokens": 3}, timeout=PATIENCE)
        before = front_end.memory_info().rss
        clients = [stack.enter_context(_connected(server)) for _ in range(IDLE)]
        for client in clients[: IDLE // 2]:  # half of them in the middle of a head
            client.sendall(b"GET /health HTTP/1.1\r\nHost:")
        until(lambda: front_end.num_fds() >= IDLE)
        reply = httpx.post(f"{server.http}/v1/completions", json={"prompt": PROMPT, "max_tokens": 3}, timeout=PATIENCE)
        assert reply.json()["usage"]["completion_tokens"] == 3
        taken = (front_end.memory_info().rss - before) / IDLE
        assert taken < 32 * 2**10, f"{taken:.0f} bytes a connection"
        for client in clients:
            client.close()
        until(lambda: front_end.num_fds() < 200)


@asynccontextmanager
async def _http_client(server: HashServer, fields: dict[str, Any]) -> AsyncIterator[None]:
    """A request on its way; its client leaves at the end."""
    with _connected(server) as client:
        client.sendall(_request(**fields))
        yield


@asynccontextmanager
async def _grpc_client(server: HashServer, fields: dict[str, Any]) -> AsyncIterator[None]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(server.grpc, options=options) as channel:
        request = pb.GenerateRequest(
            tokens=pb.TokenIds(ids=fields.get("prompt", PROMPT)), sampling=pb.Sampling(n=fields.get("n", 1))
        )
        request.stopping.max_tokens = fields.get("max_tokens", LENGTH)
        call = InferenceStub(channel).Generate(request)
        reading = asyncio.create_task(call.read())
        await asyncio.sleep(0)
        yield
        reading.cancel()


WAYS: list[tuple[Any, dict[str, Any]]] = [
    (_http_client, {}),
    (_http_client, {"n": 3}),
    (_http_client, {"stream": False, "n": 3}),
    (_http_client, {"prompt": [PROMPT, PROMPT]}),
    (_http_client, {"prompt": [65] * 200, "max_tokens": 50}),
    (_grpc_client, {}),
    (_grpc_client, {"n": 3}),
    (_grpc_client, {"prompt": [65] * 200, "max_tokens": 50}),
]


@pytest.fixture(scope="module")
def slow_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    """One whose requests take longer than any test waits: what ends sooner was ended."""
    engine = {"step_seconds": 0.25, "max_num_seqs": 4, "max_num_batched_tokens": 8, "num_pages": 401}
    with hash_server(tmp_path_factory.mktemp("slow"), {"log_level": "error"}, **engine) as server:
        yield server


async def test_clients_that_leave_free_their_pages(slow_engine: HashServer) -> None:
    def runs() -> bool:
        return slow_engine.metrics()["kv_cache_usage_perc"] > 0

    before = await asyncio.to_thread(slow_engine.until_idle)
    for client, fields in WAYS:
        async with client(slow_engine, fields):
            await asyncio.to_thread(until, runs)
        values = await asyncio.to_thread(slow_engine.until_idle)
        way = (client.__name__, sorted(fields))
        assert values["requests_aborted_total"] + values["requests_rejected_total"] > before["requests_aborted_total"], way
        assert values["requests_finished_total"] == before["requests_finished_total"], way
        before = values


async def test_clients_that_leave_the_queue(slow_engine: HashServer) -> None:
    def queue(count: int, running: int) -> Any:
        def holds() -> bool:
            values = slow_engine.metrics()
            return (values["num_requests_waiting"], values["num_requests_running"]) == (count, running)

        return holds

    async with _http_client(slow_engine, {"n": 4}):
        await asyncio.to_thread(until, queue(0, 4))
        for client in (_http_client, _grpc_client):
            async with client(slow_engine, {"n": 2}):
                await asyncio.to_thread(until, queue(2, 4))
            await asyncio.to_thread(until, queue(0, 4))
    await asyncio.to_thread(slow_engine.until_idle)
