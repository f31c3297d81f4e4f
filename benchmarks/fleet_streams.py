"""Streamed completions of a server, read side by side: their tokens, when the first came, and how each ended."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

_PATIENCE_SECONDS = 300.0


@dataclass(slots=True)
class Stream:
    """What came of one.

    Attributes:
        tokens: of its output.
        first: seconds to the first of them; None before.
        resumed: times that it went on in another engine.
        ended: "length" if it came to its end, else what went wrong; None before.
    """

    tokens: list[int] = field(default_factory=list)
    first: float | None = None
    resumed: int = 0
    ended: str | None = None


def prompts(count: int) -> list[str]:
    """Texts that go on in different ways."""
    return [f"{number}, {number + 1}, {number + 2}," for number in range(count)]


async def read_all(client: httpx.AsyncClient, texts: Sequence[str], length: int, streams: Sequence[Stream]) -> float:
    """Read a greedy stream of so many tokens for each text into `streams`. Returns the seconds that all took together."""
    start = time.monotonic()
    await asyncio.gather(*(_read(client, text, length, stream) for text, stream in zip(texts, streams, strict=True)))
    return time.monotonic() - start


async def _read(client: httpx.AsyncClient, text: str, length: int, stream: Stream) -> None:
    body = {
        "model": "pico",
        "prompt": text,
        "max_tokens": length,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    start = time.monotonic()
    try:
        async with client.stream("POST", "/v1/completions", json=body, timeout=_PATIENCE_SECONDS) as reply:
            if reply.status_code != httpx.codes.OK:
                stream.ended = (await reply.aread()).decode()
                return
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    _take(stream, json.loads(line.removeprefix("data: ")), start)
    except httpx.HTTPError as error:
        stream.ended = repr(error)
    if stream.ended is None:
        stream.ended = "it was cut off"


def _take(stream: Stream, chunk: dict[str, Any], start: float) -> None:
    if "error" in chunk:
        stream.ended = chunk["error"]["message"]
        return
    if chunk.get("usage"):
        stream.resumed = chunk["usage"].get("resumed", 0)
    for choice in chunk["choices"]:
        if choice.get("token_ids"):
            stream.tokens += choice["token_ids"]
            if stream.first is None:
                stream.first = time.monotonic() - start
        stream.ended = choice["finish_reason"] or stream.ended


async def metric(client: httpx.AsyncClient, name: str) -> float:
    """A metric of the server, summed over what it is told apart by."""
    text = (await client.get("/metrics", timeout=_PATIENCE_SECONDS)).text
    return sum(float(value) for value in re.findall(rf"^jaxserve:{name}{{.*}} (\S+)$", text, re.MULTILINE))
