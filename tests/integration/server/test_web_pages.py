"""Web pages and the server: which may send requests to it, and which may read its answers."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxserve.config.server import ServerConfig
from jaxserve.errors import ConfigError
from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving, serving

PAGE = "https://chat.example.com"
BODY = {"prompt": "hello", "max_tokens": 5}
KEY = {"Authorization": "Bearer key"}


@pytest.fixture(scope="module")
def engine() -> ScriptedClient:
    return ScriptedClient()


@pytest.fixture(scope="module")
async def keyless(engine: ScriptedClient) -> AsyncIterator[Serving]:
    async with serving(engine) as running:
        yield running


@pytest.fixture(scope="module")
async def trusting(engine: ScriptedClient) -> AsyncIterator[Serving]:
    """A server without keys that trusts a page and has another name."""
    async with serving(engine, allowed_origins=f"http://localhost:3000, {PAGE}", allowed_hosts="llm.example.com") as running:
        yield running


@pytest.fixture(scope="module")
async def keyed(engine: ScriptedClient, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """A server with keys that any page may use."""
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(f'[[key]]\nsha256 = "{hashlib.sha256(b"key").hexdigest()}"\ntenant = "acme"\nrpm = 2\n')
    async with serving(engine, keys=str(keys), allowed_origins="*") as running:
        yield running


async def send(server: Serving, method: str = "GET", path: str = "/v1/models", **given: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.http, timeout=30) as client:
        return await client.request(method, path, **given)


def own_name(server: Serving) -> str:
    return server.http.removeprefix("http://")


def port(server: Serving) -> str:
    return server.http.rpartition(":")[2]


REBOUND = [
    ("GET", "/v1/models"),
    ("GET", "/health"),
    ("GET", "/debug/trace"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/files"),
    ("POST", "/reset_prefix_cache"),
    ("GET", "/nothing"),
]


@pytest.mark.parametrize(("method", "path"), REBOUND)
async def test_a_name_that_leads_here_is_not_enough(keyless: Serving, engine: ScriptedClient, method: str, path: str) -> None:
    """DNS rebinding: to the browser the page and this server are of one origin."""
    name = f"attacker.example:{port(keyless)}"
    before = engine.resets
    reply = await send(keyless, method, path, headers={"Host": name, "Origin": f"http://{name}", "Sec-Fetch-Site": "same-origin"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (403, "permission_denied", "Host")
    assert repr(name) in error["message"]
    assert "--allowed-hosts attacker.example" in error["message"]
    assert engine.resets == before


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST", "localhost."])
async def test_names_of_this_machine(keyless: Serving, name: str) -> None:
    for host in (name, f"{name}:{port(keyless)}"):
        assert (await send(keyless, headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", ["", "localhost.attacker.example", "127.0.0.1.nip.io", "127.0.0.2", "[::2]", "x" * 5000])
async def test_names_that_look_like_it(keyless: Serving, host: str) -> None:
    reply = await send(keyless, headers={"Host": host})
    assert (reply.status_code, reply.json()["error"]["param"]) == (403, "Host")
    assert len(reply.content) < 1000


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}, "Origin"),
        ({"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"}, "Origin"),
        ({"Origin": "null"}, "Origin"),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, "Sec-Fetch-Site"),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, "Sec-Fetch-Site"),
    ],
)
async def test_pages_of_others_send_nothing(
    keyless: Serving, engine: ScriptedClient, headers: dict[str, str], param: str
) -> None:
    before = (engine.resets, len(engine.options))
    for method, path in REBOUND:
        reply = await send(keyless, method, path, headers=headers, **({"json": BODY} if method == "POST" else {}))
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (403, "permission_denied", param)
        assert repr(headers[param]) in error["message"]
        assert "--allowed-origins" in error["message"]
        assert "access-control-allow-origin" not in reply.headers
    assert (engine.resets, len(engine.options)) == before
    asked = {**headers, "Access-Control-Request-Method": "POST"}
    assert not (await send(keyless, "OPTIONS", "/v1/completions", headers=asked)).is_success


async def test_pages_of_its_own_and_programs_are_served(keyless: Serving) -> None:
    own = {"Origin": keyless.http, "Sec-Fetch-Site": "same-origin"}
    assert (await send(keyless, "POST", "/v1/completions", json=BODY, headers=own)).status_code == 200
    assert (await send(keyless, "POST", "/v1/completions", json=BODY)).status_code == 200
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await send(keyless, "GET", "/docs", headers=followed)).status_code == 200
    assert (await send(keyless, "POST", "/reset_prefix_cache", headers=followed)).status_code == 403


async def test_a_page_that_is_trusted_reads_answers_streams_and_errors(trusting: Serving) -> None:
    page = {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type,x-tenant"}
    asked = await send(trusting, "OPTIONS", "/v1/chat/completions", headers={**page, **wanted})
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert asked.headers["access-control-allow-headers"] == wanted["Access-Control-Request-Headers"]
    for fields, status in (({}, 200), ({"stream": True}, 200), ({"max_tokens": -1}, 400), ({"model": "no"}, 404)):
        reply = await send(trusting, "POST", "/v1/completions", json={**BODY, **fields}, headers=page)
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (status, PAGE)
        assert reply.headers["access-control-expose-headers"] == "*"
        assert reply.headers["vary"] == "Origin"
        assert "x-request-id" in reply.headers
    assert (await send(trusting, headers={**page, "Host": "llm.example.com"})).status_code == 200


async def test_a_page_that_is_not_trusted_is_told_so(trusting: Serving) -> None:
    other = {"Origin": "https://attacker.example", "Sec-Fetch-Site": "cross-site"}
    asked = await send(trusting, "OPTIONS", "/v1/models", headers={**other, "Access-Control-Request-Method": "GET"})
    for reply in (asked, await send(trusting, headers=other)):
        assert (reply.status_code, reply.json()["error"]["param"]) == (403, "Origin")
        assert "https://attacker.example" not in reply.headers.get("access-control-allow-origin", "")
    assert (await send(trusting, headers={"Host": "other.example.com"})).status_code == 403


async def test_behind_keys_any_page_may_be_let_read(keyed: Serving) -> None:
    """Refusals too; and by whatever name the server was called, as names were not given."""
    page = {"Origin": PAGE, "Sec-Fetch-Site": "cross-site", "Host": "gpu7.internal"}
    asked = await send(keyed, "OPTIONS", "/v1/completions", headers={**page, "Access-Control-Request-Method": "POST"})
    assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, "*")
    statuses = []
    for key in ({}, KEY, KEY, KEY):
        reply = await send(keyed, "POST", "/v1/completions", json=BODY, headers={**page, **key})
        statuses.append(reply.status_code)
        assert reply.headers["access-control-allow-origin"] == "*"
        assert reply.headers["access-control-expose-headers"] == "*"
    assert statuses == [401, 200, 200, 429]
    assert {"retry-after", "x-ratelimit-remaining-requests"} <= set(reply.headers)


async def test_with_keys_names_are_looked_at_where_they_are_given(engine: ScriptedClient, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[key]]\nsha256 = "{hashlib.sha256(b"key").hexdigest()}"\ntenant = "acme"\n')
    async with serving(engine, keys=str(keys), allowed_hosts="llm.example.com") as server:
        for host, status in (("llm.example.com:443", 200), (own_name(server), 200), ("gpu7.internal", 403)):
            assert (await send(server, headers={**KEY, "Host": host})).status_code == status
        page = await send(server, headers={**KEY, "Origin": PAGE})
        assert (page.status_code, "access-control-allow-origin" in page.headers) == (200, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allowed_hosts", "https://llm.example.com"),
        ("allowed_hosts", "llm.example.com:8000"),
        ("allowed_origins", "chat.example.com"),
        ("allowed_origins", "https://chat.example.com/, https://other.example.com"),
    ],
)
async def test_what_is_no_name_or_origin_keeps_it_from_starting(name: str, value: str) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=name) as info:
        ServerConfig(**settings)
    assert info.value.param == name
