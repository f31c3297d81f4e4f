"""GET /debug/engine of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.hash_server import HashServer, hash_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    with hash_server(tmp_path_factory.mktemp("hash")) as running:
        yield running


def test_frames_are_events_and_have_no_prompts(server: HashServer) -> None:
    body = {"prompt": "secret words", "max_tokens": 30, "ignore_eos": True}
    assert httpx.post(f"{server.http}/v1/completions", json=body, timeout=30).status_code == 200
    reply = httpx.get(f"{server.http}/debug/engine", params={"frames": 2}, timeout=60)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = [event.removeprefix("data: ") for event in reply.text.split("\n\n") if event]
    first, second = map(json.loads, events)
    assert sum(turn[18] for turn in first["turns"]) == first["generated"] == 30
    assert [one["tokens"] for one in first["spans"]] == [30]
    assert second["first_turn"] == first["first_turn"] + len(first["turns"])
    assert "secret" not in reply.text


def test_a_head_ends(server: HashServer) -> None:
    with httpx.Client(base_url=server.http, timeout=10) as client:
        reply = client.head("/debug/engine")
        assert (reply.status_code, reply.content) == (200, b"")
        assert client.get("/health").status_code == 200, "the connection goes on"


@pytest.mark.parametrize(("name", "value"), [("frames", "0"), ("frames", "-1"), ("frames", "x"), ("engine", "x" * 65)])
def test_what_is_wrong_is_named(server: HashServer, name: str, value: str) -> None:
    reply = httpx.get(
        f"{server.http}/debug/engine", params={name: value, "frames" if name == "engine" else "engine": "1"}, timeout=60
    )
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)


def test_an_engine_that_is_not_there_is_a_404(server: HashServer) -> None:
    reply = httpx.get(f"{server.http}/debug/engine", params={"engine": "nobody"}, timeout=60)
    assert (reply.status_code, reply.json()["error"]["param"]) == (404, "engine")
    assert "no engine 'nobody' is there" in reply.json()["error"]["message"]


def test_the_document_has_it(server: HashServer) -> None:
    operation = httpx.get(f"{server.http}/openapi.json", timeout=60).json()["paths"]["/debug/engine"]["get"]
    assert {one["name"] for one in operation["parameters"]} >= {"engine", "frames"}
    assert "text/event-stream" in operation["responses"]["200"]["content"]
    example = operation["responses"]["200"]["content"]["text/event-stream"]["example"]
    frame = httpx.get(f"{server.http}/debug/engine", params={"frames": 1}, timeout=60).text
    assert json.loads(example.removeprefix("data: ")).keys() == json.loads(frame.removeprefix("data: ")).keys()


def test_a_shutdown_ends_the_stream_and_says_so(tmp_path: Path) -> None:
    with hash_server(tmp_path) as server, httpx.stream("GET", f"{server.http}/debug/engine", timeout=30) as reply:
        lines = reply.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["model"] == "hash"
        assert server.stop() == 0
        last = [line for line in lines if line][-1]
        assert "the server is shutting down" in json.loads(last.removeprefix("data: "))["error"]["message"]
