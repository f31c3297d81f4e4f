"""Clients that send slowly, too much, or what is no request; and clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving, serving

PATIENCE = 20.0
BODY = b'{"prompt": "hello", "max_tokens": 5}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
REQUEST = HEAD % len(BODY) + BODY
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class Peer:
    """A client that writes bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def drip(self, content: bytes) -> None:
        """A byte at a time, until the server has enough."""
        with contextlib.suppress(ConnectionError):
            for byte in content:
                if self.reader.at_eof() or self.reader._buffer:  # type: ignore[attr-defined]
                    return
                await self.send(bytes([byte]))
                await asyncio.sleep(0.02)

    async def steady(self, content: bytes) -> None:
        """The same again and again, until the server has enough."""
        with contextlib.suppress(ConnectionError):
            while not (self.reader.at_eof() or self.reader._buffer):  # type: ignore[attr-defined]
                await self.send(content)
                await asyncio.sleep(0.02)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer that says its length."""
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await self.reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    async def refused(self, status: int, code: str, words: str) -> None:
        """The answer is such an error, and the last there is."""
        found, headers, body = await self.answer()
        error = json.loads(body)["error"]
        assert (found, error["code"], headers["connection"]) == (status, code, "close")
        assert words in error["message"]
        await self.closed()

    async def closed(self) -> None:
        """The server says nothing more."""
        async with asyncio.timeout(PATIENCE):
            assert await self.reader.read() == b""


@asynccontextmanager
async def peer(servers: Serving) -> AsyncIterator[Peer]:
    host, port = servers.http.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def one(engine: ScriptedClient | None = None, **settings: Any) -> AsyncIterator[Peer]:
    """A client of a server with such settings, which has no work in the end."""
    engine = engine or ScriptedClient()
    async with serving(engine, **settings) as servers, peer(servers) as client:
        yield client
        client.writer.close()
        async with asyncio.timeout(PATIENCE):
            while engine.active:
                await asyncio.sleep(0.01)


async def test_a_head_that_never_ends_in_time() -> None:
    async with one(receive_timeout=0.5) as client:
        await client.drip(b"GET /health HTTP/1.1\r\nHost: " + b"x" * 1000)
        await client.refused(408, "invalid_request", "receive_timeout")


async def test_a_body_that_never_ends_in_time() -> None:
    async with one(receive_timeout=0.5) as client:
        await client.send(HEAD % 1000)
        await client.drip(b" " * 1000)
        await client.refused(408, "invalid_request", "body of the request")


async def test_a_body_may_take_its_time_if_it_is_long() -> None:
    body = BODY + b" " * 12_000
    async with one(receive_timeout=1.0) as client:
        await client.send(HEAD % len(body))
        for start in range(0, len(body), 1200):
            await client.send(body[start : start + 1200])
            await asyncio.sleep(0.2)
        status, _, _ = await client.answer()
        assert status == 200


async def test_what_came_fast_earlier_buys_a_body_no_time() -> None:
    async with one(receive_timeout=0.5) as client:
        await client.send(HEAD % 1_000_000 + b" " * 900_000)
        await client.refused(408, "invalid_request", "less than 500 bytes a second")


async def test_a_body_has_a_hard_end_however_it_comes() -> None:
    async with one(body_timeout=0.5, upload_timeout=60.0) as client:
        await client.send(HEAD % 1_000_000)
        await client.steady(b" " * 1000)
        await client.refused(408, "invalid_request", "the body of the request took more than 0.5 s (body_timeout)")


async def test_an_upload_has_an_end_of_its_own(tmp_path: Path) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    head = b"POST /files/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
    head += b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    async with one(body_timeout=0.1, upload_timeout=1.0, state_dir=str(tmp_path)) as client:
        await client.send(head + form)
        await client.steady(b" " * 1000)
        await client.refused(408, "invalid_request", "took more than 1 s (upload_timeout)")


async def test_a_body_where_none_is_taken_is_refused_unread() -> None:
    lines = (b"POST /health", b"GET /health", b"GET /v1/models", b"DELETE /v1/files/x", b"POST /docs/x")
    lengths = (b"Content-Length: 15728640", b"Transfer-Encoding: chunked")

    async def refused(servers: Serving, line: bytes, length: bytes) -> None:
        async with peer(servers) as client:
            await client.send(line + b" HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n" + length + b"\r\n\r\n")
            status, _, body = await client.answer()
            error = json.loads(body)["error"]
            assert (status, error["code"], error["param"]) == (413, "request_too_large", length.partition(b":")[0].decode())
            assert f"takes no body, got {length.decode()}" in error["message"]
            await client.closed()

    async with serving(ScriptedClient()) as servers:
        await asyncio.gather(*(refused(servers, line, length) for line in lines for length in lengths))


async def test_bodies_are_held_within_a_bound() -> None:
    """Four clients hold all that there is; the next is told to come back, at once, and can when one of them has left."""
    mib = 2**20
    async with serving(ScriptedClient(), max_body_bytes=mib, max_bodies_mib=4) as servers, AsyncExitStack() as stack:
        holders = [await stack.enter_async_context(peer(servers)) for _ in range(4)]
        for one in holders:
            await one.send(HEAD % mib + b" " * 1000)
        refused = await until_held(servers, stack)
        assert refused["code"] == "overloaded"
        assert f"{4 * mib} bytes of request bodies are being answered" in refused["message"]
        assert "--max-bodies-mib" in refused["message"]
        holders[0].writer.close()
        client = await stack.enter_async_context(peer(servers))
        async with asyncio.timeout(PATIENCE):
            while True:
                await client.send(REQUEST)
                status, headers, _ = await client.answer()
                if status == 200:
                    break
                assert int(headers["retry-after"]) >= 1


async def until_held(servers: Serving, stack: AsyncExitStack) -> Any:
    """The error for one body more, once there is one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            client = await stack.enter_async_context(peer(servers))
            await client.send(REQUEST)
            status, _, body = await client.answer()
            if status == 503:
                return json.loads(body)["error"]


@pytest.mark.parametrize("first", [b"", b"\r\n\r\n", HEALTH])
async def test_silence_ends_a_connection(first: bytes) -> None:
    async with one(http_keepalive=0.4) as client:
        await client.send(first)
        if first == HEALTH:
            assert (await client.answer())[0] == 200
        await client.closed()


async def test_a_request_may_take_longer_than_any_of_these_times() -> None:
    engine = ScriptedClient(delay=0.5)
    async with one(engine, http_keepalive=0.3, receive_timeout=0.3, unread_timeout=0.3) as client:
        await client.send(REQUEST)
        status, _, body = await client.answer()
        assert (status, json.loads(body)["choices"][0]["text"]) == (200, "hello")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health?" + b"x" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: " + b"x" * 3000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 1_000_000,
        b"GET /" + b"x" * 1_000_000,
    ],
    ids=["url", "header", "headers", "a header without end", "a url without end"],
)
async def test_a_head_that_is_too_long(head: bytes) -> None:
    async with one(max_header_kib=2) as client:
        await client.send(head[:10])
        await client.send(head[10:])
        await client.refused(431, "request_too_large", "2048 bytes (max_header_kib)")


async def test_the_longest_head_that_is_read() -> None:
    async with one(max_header_kib=2) as client:
        for length, status in ((2000, 200), (2019, 200), (2020, 431)):
            await client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * length + b"\r\n\r\n")
            assert (await client.answer())[0] == status


@pytest.mark.parametrize(
    "content", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 100_000]
)
async def test_what_is_no_request(content: bytes) -> None:
    async with one() as client:
        await client.send(content)
        await client.refused(400, "invalid_request", "not valid HTTP")


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_hosts_that_are_missing_or_two(version: bytes) -> None:
    async with serving(ScriptedClient()) as servers:
        for hosts, words in ((0, "has no Host"), (2, "has 2 Host headers")):
            async with peer(servers) as client:
                await client.send(b"GET /health HTTP/" + version + b"\r\n" + b"Host: localhost\r\n" * hosts + b"\r\n")
                if hosts or version == b"1.1":
                    await client.refused(400, "invalid_request", words)
                else:
                    assert (await client.answer())[0] == 200


async def test_a_body_without_end() -> None:
    async with one(max_body_bytes=100_000) as client:
        await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")

        async def flood() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await client.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")

        flooding = asyncio.create_task(flood())
        status, _, body = await client.answer()
        assert (status, json.loads(body)["error"]["code"]) == (413, "request_too_large")
        async with asyncio.timeout(PATIENCE):
            await flooding


async def test_a_chunked_body() -> None:
    async with one() as client:
        await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        await client.send(b"Transfer-Encoding: chunked\r\n\r\n")
        for part in (BODY[:7], BODY[7:8], BODY[8:]):
            await client.send(b"%x\r\n%b\r\n" % (len(part), part))
        await client.send(b"0\r\n\r\n")
        assert (await client.answer())[0] == 200


async def test_requests_in_a_row_are_answered_in_order() -> None:
    async with one(ScriptedClient(delay=0.01)) as client:
        await client.send(REQUEST + HEALTH + REQUEST)
        bodies = [json.loads((await client.answer())[2]) for _ in range(3)]
        assert [body.get("object") for body in bodies] == ["text_completion", None, "text_completion"]


async def test_nothing_comes_between_the_pieces_of_an_answer() -> None:
    """What follows a request and is none ends the connection, and is not answered into the stream that runs."""
    body = BODY.replace(b"}", b', "stream": true}')
    async with one(ScriptedClient(delay=0.05)) as client:
        await client.send(HEAD % len(body) + body)
        async with asyncio.timeout(PATIENCE):
            got = await client.reader.readuntil(b"data: ")
            await client.send(b"nonsense\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                got += await client.reader.read()
        assert got.count(b"HTTP/1.1") == 1
        assert b"HTTP/1.1 400" not in got


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PUT"])
async def test_other_methods(method: str) -> None:
    async with one() as client:
        await client.send(f"{method} /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE):
            head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 405 ")
        if method == "HEAD":
            await client.send(HEALTH)
            assert (await client.answer())[0] == 200


@pytest.mark.parametrize("kind", ["websocket", "h2c"])
async def test_upgrades_are_not_made(kind: str) -> None:
    upgrade = f"Connection: Upgrade\r\nUpgrade: {kind}\r\nSec-WebSocket-Key: x\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n".encode()
    async with one() as client:
        await client.send(HEALTH.replace(b"\r\n\r\n", b"\r\n" + upgrade + b"\r\n"))
        assert (await client.answer())[0] == 200
        await client.send(REQUEST.replace(b"\r\n\r\n", b"\r\n" + upgrade + b"\r\n"))
        status, _, body = await client.answer()
        assert (status, json.loads(body)["choices"][0]["text"]) == (200, "hello")
        first, second, third = HEALTH.replace(b"\r\n\r\n", b"\r\n" + upgrade + b"\r\n").partition(b"pgrade:")
        await client.send(first)
        await asyncio.sleep(0.05)
        await client.send(second + third)
        await client.refused(400, "invalid_request", "not served")


@pytest.mark.parametrize("stream", [False, True])
async def test_http_1_0(stream: bool) -> None:
    body = BODY.replace(b"}", b', "stream": true}') if stream else BODY
    async with one(ScriptedClient(delay=0.01)) as client:
        await client.send((HEAD % len(body)).replace(b"HTTP/1.1", b"HTTP/1.0") + body)
        async with asyncio.timeout(PATIENCE):
            got = await client.reader.read()
    head, _, content = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"chunked" not in head
    assert b"connection: close" in head
    if stream:
        assert content.startswith(b"data: {")
        assert content.endswith(b"}\n\ndata: [DONE]\n\n")
    else:
        assert json.loads(content)["choices"][0]["text"] == "hello"


async def test_more_connections_than_allowed() -> None:
    async with serving(ScriptedClient(), max_connections=2) as servers, peer(servers) as first, peer(servers) as second:
        for client in (first, second):
            await client.send(HEALTH)
            assert (await client.answer())[0] == 200
        async with peer(servers) as third:
            await third.refused(503, "overloaded", "max_connections")
        first.writer.close()
        await first.writer.wait_closed()
        async with asyncio.timeout(PATIENCE):
            while True:
                async with peer(servers) as fourth:
                    await fourth.send(HEALTH)
                    if (await fourth.answer())[0] == 200:
                        break


@pytest.mark.parametrize("rest", [b"GET /health HTTP/1.1\r\nHo", HEAD % len(BODY) + BODY[:9]], ids=["head", "body"])
async def test_the_time_of_an_answer_is_not_that_of_the_next_request(rest: bytes) -> None:
    async with one(ScriptedClient(delay=0.4), receive_timeout=0.5) as client:
        await client.send(REQUEST + rest)
        assert (await client.answer())[0] == 200
        await client.send(b"st: localhost\r\n\r\n" if rest.startswith(b"GET") else BODY[9:])
        assert (await client.answer())[0] == 200


@pytest.mark.parametrize(("stream", "header"), [(False, b""), (True, b""), (False, b"Connection: close\r\n")])
async def test_a_client_that_does_not_read_is_given_up(stream: bool, header: bytes) -> None:
    """Half of a long answer waits for it, and it takes nothing; its request ends with its connection."""
    fields = {"prompt": "x" * 200, "max_tokens": 200, "n": 8, "logprobs": 20, "stream": stream}
    body = json.dumps(fields).encode()
    engine = ScriptedClient()
    async with serving(engine, unread_timeout=0.5) as servers:
        host, port = servers.http.removeprefix("http://").split(":")
        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect((host, int(port)))
            silent.sendall((HEAD % len(body)).replace(b"Host: localhost\r\n", b"Host: localhost\r\n" + header) + body)
            async with asyncio.timeout(PATIENCE), peer(servers) as other:
                while not engine.seen:
                    await asyncio.sleep(0.01)
                while engine.active or servers.servers._http.server_state.connections - {_own(servers, other)}:
                    await asyncio.sleep(0.05)
                await other.send(REQUEST)
                assert (await other.answer())[0] == 200
            assert len(engine.aborted) == (1 if stream else 0)


async def test_times_may_be_as_long_as_anybody_likes() -> None:
    names = ("unread_timeout", "token_timeout", "receive_timeout", "sse_keepalive", "http_keepalive")
    limits = {**dict.fromkeys(names, 1e300), "max_connections": 10**30, "max_header_kib": 10**30}
    async with serving(ScriptedClient(), **limits) as servers, peer(servers) as client:
        for _ in range(2):
            await client.send(REQUEST)
            assert (await client.answer())[0] == 200


def _own(servers: Serving, client: Peer) -> Any:
    """The server's side of a connection."""
    address = client.writer.get_extra_info("sockname")
    return next(one for one in servers.servers._http.server_state.connections if one.client == address)  # type: ignore[union-attr]
