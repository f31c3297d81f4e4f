"""Clients that stream completions over HTTP and keep when what came."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import uvloop

from benchmarks.peers.workloads import Request, Workload
from jaxserve.load.connection import Connections

_WORD = 4  # characters of a token


@dataclass(slots=True)
class Stream:
    """One request's stream. Times are seconds of `time.perf_counter`.

    Attributes:
        request: what was asked.
        due: when it arrived; in a closed loop when its client was free.
        arrivals: when a piece of text came, and how many tokens had come with it.
        ended: when the reply was whole.
        text: all of it.
        output_tokens: as the server counts them.
    """

    request: Request
    due: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended: float = 0.0
    text: str = ""
    output_tokens: int = 0


def run(url: str, fields: Mapping[str, Any], workload: Workload, seed: int) -> list[Stream]:
    """Put a load on a server.

    Args:
        url: the server's.
        fields: what every request says besides: the model's name.
        workload: the load.
        seed: of its tokens and lengths.

    Raises RuntimeError if a request fails or has another number of tokens than asked for.
    """
    found = [Stream(request) for request in workload.requests(seed)]
    gc.collect()
    gc.disable()  # nothing here has cycles, and a collection would be seen as the server's pause
    try:
        uvloop.run(_run(url, fields, workload, found))
    finally:
        gc.enable()
    return found


async def _run(url: str, fields: Mapping[str, Any], workload: Workload, found: list[Stream]) -> None:
    begin = time.perf_counter()
    if workload.clients:
        waiting = iter(found)

        async def client() -> None:
            for stream in waiting:
                stream.due = time.perf_counter()
                await _complete(url, fields, stream)

        await asyncio.gather(*(client() for _ in range(workload.clients)))
    else:

        async def arriving(stream: Stream) -> None:
            await asyncio.sleep(begin + stream.request.arrival - time.perf_counter())
            stream.due = begin + stream.request.arrival
            await _complete(url, fields, stream)

        await asyncio.gather(*map(arriving, found))


async def _complete(url: str, fields: Mapping[str, Any], stream: Stream) -> None:
    request = stream.request
    status, body = await exchange(url, fields, stream)
    if status != 200:
        raise RuntimeError(f"status {status}: {body[:500]!r}")
    if stream.output_tokens != request.output:
        raise RuntimeError(f"{request.output} tokens were asked for and {stream.output_tokens} came")


async def exchange(url: str, fields: Mapping[str, Any], stream: Stream) -> tuple[int, bytes]:
    """Send a stream's request and fill in what comes of it. Returns the status and the reply's body.

    Raises OSError if the server cannot be reached or leaves in the middle.
    """
    request = stream.request
    body = {
        **fields,
        "prompt": request.prompt,
        "max_tokens": request.output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pieces: list[tuple[float, bytes]] = []
    headers = {"Content-Type": "application/json"}
    connections = Connections(url)  # of its own: llama.cpp's server closes one that it has streamed on, and says it keeps it
    try:
        reply = await connections.exchange(
            "POST", "/v1/completions", headers, json.dumps(body).encode(), lambda piece, now: pieces.append((now, piece))
        )
    finally:
        connections.close()
    stream.ended = time.perf_counter()
    if reply.status == 200:
        read(stream, pieces)
    return reply.status, b"".join(piece for _, piece in pieces)


def read(stream: Stream, pieces: list[tuple[float, bytes]]) -> None:
    """Fill in what pieces of a body say, each with the time at which it came."""
    rest, text = b"", []
    characters = 0
    for now, piece in pieces:
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            data = event.removeprefix(b"data: ")
            if not event.startswith(b"data: ") or data == b"[DONE]":
                continue
            chunk: dict[str, Any] = json.loads(data)
            if chunk.get("choices") and (new := chunk["choices"][0].get("text")):
                text.append(new)
                characters += len(new)
                stream.arrivals.append((now, -(-characters // _WORD)))
            if chunk.get("usage"):
                stream.output_tokens = chunk["usage"]["completion_tokens"]
    stream.text = "".join(text)
