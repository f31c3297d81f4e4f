"""The bill of a server process whose engine is killed, and whose clients leave, while tokens flow."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.gateway.conftest import usage
from tests.support.serve_process import Process, Served
from tests.support.tiny_checkpoint import write_tiny_checkpoint

SMALL = ("--max-num-seqs", "2", "--max-num-batched-tokens", "16", "--max-model-len", "2048", "--load-format", "dummy")
WISH: dict[str, Any] = {
    "prompt": "hello",
    "max_tokens": 2000,  # seconds, of which the engine has a fraction to live
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


@dataclass
class Billed:
    process: Process
    usage_log: Path


@pytest.fixture(scope="module")
def billed(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Billed]:
    folder = tmp_path_factory.mktemp("billed")
    log = folder / "usage.jsonl"
    checkpoint = write_tiny_checkpoint(folder / "tiny", context=2048)
    for process in served(folder, str(checkpoint), *SMALL, "--usage-log", str(log), "--frontends", "2"):
        yield Billed(process, log)


def read(url: str, name: str, most: int, first_token: threading.Event) -> tuple[int, str]:
    """Tokens that a client got and how its stream ended; it leaves after `most`."""
    got = 0
    with httpx.stream("POST", f"{url}/v1/completions", json=WISH, headers={"X-Request-Id": name}, timeout=60) as reply:
        if reply.status_code != 200:
            return 0, json.loads(reply.read())["error"]["code"]
        for line in reply.iter_lines():
            if line == "data: [DONE]":
                return got, "done"
            if not line.startswith("data: "):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                return got, chunk["error"]["code"]
            got = chunk["usage"]["completion_tokens"]
            if got and most > WISH["max_tokens"]:
                first_token.set()
            if got >= most:
                return got, "left"
    return got, "cut off"


def engine_of(process: Process) -> psutil.Process:
    children = psutil.Process(process.popen.pid).children(recursive=True)
    (engine,) = [child for child in children if any("jaxserve.engine" in word for word in child.cmdline())]
    return engine


@pytest.mark.one_server("where an engine of a fleet is killed, no stream ends (tests/system/fleet)")
def test_what_was_delivered_is_billed_whatever_happens(billed: Billed) -> None:
    engine, first_token = engine_of(billed.process), threading.Event()
    wishes = {**{f"stays-{number}": 9999 for number in range(6)}, **{f"leaves-{number}": 3 for number in range(6)}}
    with ThreadPoolExecutor(len(wishes)) as threads:
        reading = {name: threads.submit(read, billed.process.http, name, most, first_token) for name, most in wishes.items()}
        assert first_token.wait(60)
        engine.kill()
        outcomes = {name: one.result() for name, one in reading.items()}
    assert billed.process.stop() == 0
    events = usage(billed.usage_log)
    assert {event["request_id"] for event in events} <= set(wishes)
    for name, (got, end) in outcomes.items():
        mine = [event for event in events if event["request_id"] == name]
        told = sum(event["completion_tokens"] for event in mine)
        assert end in ("done", "left", "draining") or (end, got) == ("engine_dead", 0), "some may come while there is no engine"
        if end == "left":
            assert told >= got, "chunks may be on their way to a client that leaves"
        else:
            assert told == got
        if got:
            assert sum(event["final"] for event in mine) == 1
    assert any(got and end == "done" for got, end in outcomes.values()), "it resumes in the next engine"
