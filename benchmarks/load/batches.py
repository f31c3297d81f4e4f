"""Small batches beside other traffic: uploaded, begun, and waited for."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import httpx

from benchmarks.load.schedule import words

_ENDED = ("completed", "cancelled", "failed", "expired")
_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 600.0
_PROMPT, _OUTPUT = 64, 16


@dataclass(slots=True)
class Batch:
    """One of them.

    Attributes:
        lines: that it has.
        completed: of these.
        seconds: from its upload to its end.
        status: its last; "begun" before it has one.
        error: what the network or a refusal said; empty for none.
    """

    lines: int
    completed: int = 0
    seconds: float = 0.0
    status: str = "begun"
    error: str = ""


def content(model: str, name: str, lines: int, vocabulary: int) -> bytes:
    """The file of a batch; prompts are made of its name."""
    made = []
    for number in range(lines):
        prompt = words(f"batch {name} {number}", _PROMPT, vocabulary)
        body = {"model": model, "prompt": prompt, "max_tokens": _OUTPUT, "temperature": 0, "ignore_eos": True}
        made.append({"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body})
    return b"".join(json.dumps(line).encode() + b"\n" for line in made)


async def run(http: httpx.AsyncClient, batch: Batch, file: bytes) -> None:
    """Have it answered, and fill in what becomes of it."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await _run(http, batch, file)
    except (httpx.HTTPError, TimeoutError) as error:
        batch.error = f"{type(error).__name__} {error}".strip()
    batch.seconds = time.perf_counter() - began


async def _run(http: httpx.AsyncClient, batch: Batch, file: bytes) -> None:
    uploaded = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("batch.jsonl", file)})
    asked = {"input_file_id": uploaded.raise_for_status().json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    begun = (await http.post("/v1/batches", json=asked)).raise_for_status().json()
    while batch.status not in _ENDED:
        await asyncio.sleep(_POLL_SECONDS)
        found = (await http.get(f"/v1/batches/{begun['id']}")).raise_for_status().json()
        batch.status, batch.completed = found["status"], found["request_counts"]["completed"]
