"""The pages as files of a server: what may run in them, how they travel, and a server without them."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser

import httpx
import pytest

from server.page.bundle import MEDIA_TYPES, STATIC, assets
from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving, serving

MAX_COMPRESSED_BYTES = 500 * 1024


@pytest.fixture(scope="module")
async def running() -> AsyncIterator[Serving]:
    async with serving(ScriptedClient(), api_key_hashes=("0" * 64,)) as one:
        yield one


class Links(HTMLParser):
    """What a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: list[str] = []
        self.others: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                (self.anchors if tag == "a" else self.others).append(value)


async def get(running: Serving, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=running.http, timeout=60) as client:
        return await client.get(path, headers=headers)


@pytest.mark.parametrize("path", ["/", "/engine"])
async def test_pages_run_their_own_scripts_only(running: Serving, path: str) -> None:
    reply = await get(running, path)  # without a key: there is nothing secret in them
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/html")
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\bstyle=", reply.text), "the policy would stop it"


async def test_what_pages_load_is_there_and_theirs(running: Serving) -> None:
    for name, asset in assets().items():
        text = asset.content.decode()
        if name.endswith(".html"):
            for path in re.findall(r'(?:src|href)="(page/[^"]+)"', text):
                assert (await get(running, f"/{path}")).status_code == 200, path
        elif name.endswith(".js") and not name.startswith("vendor/"):
            for path in re.findall(r'from "(\.[^"]+)"', text):
                assert (STATIC / name).parent.joinpath(path).is_file(), f"{name} imports {path}"
            assert not re.search(r"https?://(?!www\.w3\.org/)", text), f"{name} names another server"


async def test_files_travel_compressed_and_once(running: Serving) -> None:
    plain = await get(running, "/page/shared/style.css", **{"accept-encoding": "identity"})
    packed = await get(running, "/page/shared/style.css", **{"accept-encoding": "gzip, br"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content == (STATIC / "shared/style.css").read_bytes()
    again = await get(running, "/page/shared/style.css", **{"if-none-match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_other_files_are_not_given(running: Serving) -> None:
    for path in ("/page/nothing.js", "/page/%2e%2e/bundle.py", "/page//etc/passwd"):
        reply = await get(running, path)
        assert reply.status_code == 404, path
        assert "no file" in reply.json()["error"]["message"]


async def test_all_of_it_is_small() -> None:
    every = assets().values()
    assert {asset.path.suffix for asset in every} <= set(MEDIA_TYPES)
    assert sum(len(gzip.compress(asset.content, 9)) for asset in every) <= MAX_COMPRESSED_BYTES


async def test_libraries_are_those_that_are_written_down() -> None:
    vendor = STATIC / "vendor"
    entries = (vendor / "LICENSES.txt").read_text().split(f"\n{'-' * 80}\n")
    digests = {entry.partition("\n")[0]: entry.partition("\nsha256: ")[2].partition("\n")[0] for entry in entries}
    assert digests == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in vendor.glob("*.js")}


async def test_a_server_without_pages_tells_the_model_and_where_to_go() -> None:
    async with serving(ScriptedClient(), page=False) as plain:
        front = await get(plain, "/")
        assert front.headers["content-type"].startswith("text/html")
        assert f"<code>{ScriptedClient().model.name}</code>" in front.text
        links = Links()
        links.feed(front.text)
        assert not links.others
        assert {"docs", "health", "metrics"} <= set(links.anchors)
        for path in links.anchors:
            assert (await get(plain, f"/{path}")).status_code == 200, path
        for path in ("/engine", "/page/shared/style.css"):
            assert (await get(plain, path)).status_code == 404
