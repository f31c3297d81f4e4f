"""A small HTTP server for engines that are libraries: streamed completions of token ids, greedy, of a set length.

Runs under the engine's own interpreter, so it imports the standard library alone. It does less than a product's server (no
validation, no sampling parameters, text by a table), so what is measured of such an engine is at least what it can do.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Put = Callable[[Sequence[int]], None]
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEF"  # as benchmarks.batch_requests.word, which needs the tokenizers package


class Hosted(Protocol):
    """The engine behind it."""

    def submit(self, prompt: list[int], count: int, put: Put) -> None:
        """Begin a completion of so many tokens; `put` is called from any thread with each few of them as they come."""


def serve(engine: Hosted, port: int) -> None:
    """Serve on a port of 127.0.0.1 until the process is ended."""
    asyncio.run(_serve(engine, port))


async def _serve(engine: Hosted, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                await _answer(engine, head, reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


async def _head(reader: asyncio.StreamReader) -> list[str]:
    """The lines of the next request's head; none when the client has left."""
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return []


async def _answer(engine: Hosted, head: list[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    fields = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
    body = await reader.readexactly(int(fields.get("content-length", 0)))
    if not head[0].startswith("POST"):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        return
    wanted: dict[str, Any] = json.loads(body)
    count = wanted["max_tokens"]
    tokens: asyncio.Queue[Sequence[int]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def put(some: Sequence[int]) -> None:
        loop.call_soon_threadsafe(tokens.put_nowait, some)

    engine.submit(wanted["prompt"], count, put)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    sent = 0
    while sent < count:
        some = await tokens.get()
        sent += len(some)
        _event(writer, json.dumps({"choices": [{"index": 0, "text": "".join(map(_word, some))}]}))
        await writer.drain()
    usage = {"prompt_tokens": len(wanted["prompt"]), "completion_tokens": sent}
    _event(writer, json.dumps({"choices": [], "usage": usage}))
    _event(writer, "[DONE]")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _event(writer: asyncio.StreamWriter, data: str) -> None:
    event = f"data: {data}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(event), event))


def _word(token: int) -> str:
    return " " + _LETTERS[token >> 10] + _LETTERS[token >> 5 & 31] + _LETTERS[token & 31]


def arguments() -> tuple[str, int, int]:
    """Model, port and threads from the command line."""
    model, port, threads = sys.argv[1:]
    return model, int(port), int(threads)
