"""Batches over a hash engine: uploaded and waited for with the openai SDK, and compared with what they should be."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import openai
from openai.types import Batch

from tests.support.hash_executor import expected
from tests.support.hash_server import HashServer

URL: Final = "/v1/completions"
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
VOCAB = 260  # of the hash engine
PATIENCE = 60.0


def sdk(server: HashServer, api_key: str = "none") -> openai.OpenAI:
    """The SDK as its users make it."""
    return openai.OpenAI(base_url=f"{server.http}/v1", api_key=api_key, max_retries=2, timeout=PATIENCE)


def request(number: int, max_tokens: int, **body: Any) -> dict[str, Any]:
    """One whose answer is known; see `answer`."""
    asked = {"model": "hash", "prompt": prompt(number), "max_tokens": max_tokens, "return_token_ids": True, **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": URL, "body": asked}


def prompt(number: int) -> list[int]:
    return [20 + number % 200, 21, 22 + number // 200, 23]


def answer(asked: Mapping[str, Any]) -> list[int]:
    """The tokens of a request's answer."""
    return expected(asked["body"]["prompt"], asked["body"]["max_tokens"], vocab=VOCAB)


def begin(client: openai.OpenAI, requests: Iterable[Mapping[str, Any]], **fields: Any) -> Batch:
    """Upload requests and have them answered."""
    content = b"".join(json.dumps(one).encode() + b"\n" for one in requests)
    file = client.files.create(file=("requests.jsonl", io.BytesIO(content)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=URL, completion_window="24h", **fields)


def wait(client: openai.OpenAI, batch: Batch, *, done: int | None = None) -> Batch:
    """Wait for its end, or until so many of its requests are done."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = client.batches.retrieve(batch.id)
        if found.status in ENDED or (done is not None and count_done(found) >= done):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def count_done(batch: Batch) -> int:
    """Requests that have an answer or an error."""
    counts = batch.request_counts
    assert counts is not None
    return counts.completed + counts.failed


def lines(client: openai.OpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """The lines of a file of results by custom_id, each of which must stand there once."""
    if file_id is None:
        return {}
    found = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    by_name = {one["custom_id"]: one for one in found}
    assert len(by_name) == len(found), "a request was answered twice"
    return by_name


def check_answers(requests: Iterable[Mapping[str, Any]], output: Mapping[str, Mapping[str, Any]]) -> None:
    """Every answer that is there is the one that an undisturbed run would give."""
    by_name = {one["custom_id"]: one for one in requests}
    for name, line in output.items():
        (choice,) = line["response"]["body"]["choices"]
        assert (line["response"]["status_code"], choice["token_ids"]) == (200, answer(by_name[name])), name
