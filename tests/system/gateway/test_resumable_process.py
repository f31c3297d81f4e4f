"""Streams that survive their connection, over a server of two front ends as processes: whichever a client comes back to."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.hash_server import HashServer, hash_server

TENANTS = ("acme", "globex")
TOKENS = 60
TRIES = 8  # connections: that all of them come to one of two front ends is rare, and no failure
BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": TOKENS, "seed": 7, "stream": True, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    folder = tmp_path_factory.mktemp("server")
    keys = folder / "keys.toml"
    keys.write_text(
        "".join(f'[[key]]\nsha256 = "{hashlib.sha256(one.encode()).hexdigest()}"\ntenant = "{one}"\n' for one in TENANTS)
    )
    settings = {"frontends": 2, "keys": str(keys), "stream_grace": 10.0}
    with hash_server(folder, settings, step_seconds=0.03) as running:
        yield running


def connection(server: HashServer, who: str = "acme") -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.http, headers={"x-api-key": who}, timeout=60)


def events_of(text: str) -> list[tuple[int, str]]:
    blocks = [block.split("\n") for block in text.split("\n\n")[:-1] if not block.startswith(":")]
    return [(int(number.removeprefix("id: ")), data.removeprefix("data: ")) for number, data in blocks]


def said(chunks: list[str]) -> tuple[str, list[str]]:
    """The text and how it ended: what comes in one chunk depends on how busy the server is."""
    choices = [choice for chunk in chunks if chunk != "[DONE]" for choice in json.loads(chunk)["choices"]]
    return "".join(choice["text"] for choice in choices), [
        choice["finish_reason"] for choice in choices if choice["finish_reason"]
    ]


async def begin(server: HashServer, stream_id: str, count: int, **fields: Any) -> list[tuple[int, str]]:
    """Ask for a stream and leave after so many events."""
    text = ""
    async with (
        connection(server) as http,
        http.stream("POST", "/v1/completions", json={**BODY, **fields}, headers={"X-Conversation-Id": stream_id}) as reply,
    ):
        assert reply.headers["x-stream-id"] == stream_id
        async for piece in reply.aiter_text():
            text += piece
            if len(events_of(text)) >= count:
                break
    return events_of(text)


async def asked(server: HashServer, method: str, stream_id: str, have: int = 0, who: str = "acme") -> httpx.Response:
    """Over a connection of its own."""
    async with connection(server, who) as http:
        return await http.request(method, f"/v1/streams/{stream_id}", params={"from": have} if have else {})


async def test_every_front_end_goes_on_where_the_client_was(server: HashServer) -> None:
    async with connection(server) as http:
        whole = (await http.post("/v1/completions", json=BODY)).text
    assert "id: " not in whole
    got = await begin(server, "cut", 5)
    replies = await asyncio.gather(*(asked(server, "GET", "cut", len(got)) for _ in range(TRIES)))
    later = await asyncio.gather(*(asked(server, "GET", "cut", len(got)) for _ in range(TRIES)))
    both = [got + events_of(reply.text) for reply in (*replies, *later)]
    assert [number for number, _ in both[0]] == list(range(1, len(both[0]) + 1))
    assert all(one == both[0] for one in both)
    expected = said([line.removeprefix("data: ") for line in whole.split("\n\n")[:-1]])
    assert said([data for _, data in both[0]]) == expected
    assert (len(expected[0]) > 5, expected[1], both[0][-1][1]) == (True, ["length"], "[DONE]")


async def test_another_tenant_finds_nothing_on_any_front_end(server: HashServer) -> None:
    await begin(server, "mine", 2)
    for _ in range(TRIES // 2):
        for method in ("GET", "DELETE"):
            assert (await asked(server, method, "mine", who="globex")).status_code == 404
        async with connection(server, "globex") as http:
            assert (await http.get("/v1/streams")).json()["data"] == []
    assert events_of((await asked(server, "GET", "mine")).text)[-1][1] == "[DONE]"
    server.until_idle()


async def test_one_that_runs_elsewhere_is_replaced_and_deleted(server: HashServer) -> None:
    """Each time at whichever front end takes the connection; the rows are free at once, and not only when the grace is over."""
    before = server.until_idle()
    long = {"max_tokens": 100}
    for place in range(TRIES):
        await begin(server, "again", 2, **long, prompt=f"number {place}")
    async with connection(server) as http:
        (entry,) = (await http.get("/v1/streams")).json()["data"][-1:]
    assert (entry["id"], entry["status"]) == ("again", "running")
    assert (await asked(server, "DELETE", "again")).status_code == 200
    after = server.until_idle()
    assert after["requests_aborted_total"] - before["requests_aborted_total"] == TRIES
    assert after["requests_finished_total"] == before["requests_finished_total"]
    for _ in range(TRIES):
        assert (await asked(server, "GET", "again")).status_code == 404


async def test_the_rows_are_free_when_the_grace_is_over(tmp_path: Path) -> None:
    settings = {"frontends": 2, "stream_grace": 0.3}
    with hash_server(tmp_path, settings, step_seconds=0.2) as server:
        await begin(server, "late", 2, max_tokens=110)  # of which all would take 22 s
        values = server.until_idle()
        assert (values["requests_aborted_total"], values["requests_finished_total"]) == (1, 0)
        for _ in range(TRIES):
            assert (await asked(server, "GET", "late")).status_code == 404
