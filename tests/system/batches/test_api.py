"""Files and batches as the openai SDK asks for them, of a server that only keeps them: nothing runs a batch here."""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import os
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.batches.records import Counts, Problem, Results, Spent
from server.batches.store import Quotas, Store
from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving, serving

TENANTS = [f"tenant-{number}" for number in range(100)]
ELSEWHERE = "elsewhere"  # a tenant that may use no model that is served
LINES = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi"}}\n' * 20
COMPLETIONS: Any = {"endpoint": "/v1/completions", "completion_window": "24h"}
NAMES_NOTHING = ("file-1", "..", "%2e%2e%2fstate.db", "x" * 5000, "%00", "batch_1")


def keys_toml() -> str:
    """A key for each tenant, of its name."""
    entry = '[[key]]\nsha256 = "{0}"\ntenant = "{1}"\nid = "key of {1}"\n{2}\n'
    return "".join(
        entry.format(hashlib.sha256(key.encode()).hexdigest(), key, 'models = ["other"]' if key == ELSEWHERE else "")
        for key in (*TENANTS, ELSEWHERE)
    )


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory, state: Path) -> AsyncIterator[Serving]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(keys_toml())
    limits = {"max_file_mib": 1, "max_tenant_mib": 2, "max_tenant_batches": 2, "max_body_bytes": 20_000}
    async with serving(ScriptedClient(), keys=str(keys), state_dir=str(state), **limits) as running:
        yield running


@pytest.fixture(scope="module")
async def shared_sdk(servers: Serving) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{servers.http}/v1", api_key="none") as client:
        yield client


@pytest.fixture(scope="module")
def unused() -> Iterator[str]:
    return iter(TENANTS)


@pytest.fixture
def tenant(unused: Iterator[str]) -> str:
    """One that has nothing stored yet."""
    return next(unused)


@pytest.fixture
def sdk(shared_sdk: openai.AsyncOpenAI, tenant: str) -> openai.AsyncOpenAI:
    return shared_sdk.with_options(api_key=tenant)


@pytest.fixture
def other_sdk(shared_sdk: openai.AsyncOpenAI, unused: Iterator[str]) -> openai.AsyncOpenAI:
    """Another tenant's."""
    return shared_sdk.with_options(api_key=next(unused))


@pytest.fixture
async def http(servers: Serving, tenant: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=servers.http, headers={"Authorization": f"Bearer {tenant}"}, verify=False, timeout=60
    ) as client:
        yield client


def on_disk(state: Path) -> set[str]:
    return {path.name for path in (state / "files").iterdir()}


async def refusal(work: Coroutine[Any, Any, Any]) -> tuple[int, str | None, str | None, str]:
    """Status, code, field and message of what is refused."""
    with pytest.raises(openai.APIStatusError) as info:
        await work
    error = info.value
    assert isinstance(error.body, dict)
    return error.status_code, error.code, error.param, error.body["message"]


def refused(reply: httpx.Response) -> tuple[int, str, str | None]:
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return reply.status_code, error["code"], error["param"]


async def uploaded(sdk: openai.AsyncOpenAI, content: bytes = LINES) -> str:
    return (await sdk.files.create(file=("night.jsonl", content), purpose="batch")).id


async def test_a_file_from_upload_to_deletion(sdk: openai.AsyncOpenAI, state: Path) -> None:
    expiry: Any = {"anchor": "created_at", "seconds": 7200}
    stored = await sdk.files.create(file=("nächte.jsonl", io.BytesIO(LINES)), purpose="batch", expires_after=expiry)
    assert (stored.filename, stored.bytes, stored.purpose, stored.object) == ("nächte.jsonl", len(LINES), "batch", "file")
    assert stored.expires_at == stored.created_at + 7200
    assert await sdk.files.retrieve(stored.id) == stored
    assert [one async for one in sdk.files.list()] == [stored]
    content = await sdk.files.content(stored.id)
    assert content.content == LINES
    assert content.response.headers["content-length"] == str(len(LINES))
    assert content.response.headers["content-disposition"] == "attachment; filename*=UTF-8''n%C3%A4chte.jsonl"
    gone = await sdk.files.delete(stored.id)
    assert (gone.id, gone.deleted, gone.object) == (stored.id, True, "file")
    for ask in (sdk.files.retrieve, sdk.files.content, sdk.files.delete):
        assert (await refusal(ask(stored.id)))[:2] == (404, "not_found")
    assert stored.id not in on_disk(state)


async def test_lists_go_on_page_by_page(sdk: openai.AsyncOpenAI) -> None:
    ids = [await uploaded(sdk, b"x") for _ in range(5)]
    assert [one.id async for one in sdk.files.list(limit=2)] == ids[::-1]
    assert [one.id async for one in sdk.files.list(limit=2, order="asc")] == ids
    assert [one.id async for one in sdk.files.list(purpose="batch_output")] == []
    page = await sdk.files.list(limit=2, after=ids[4], purpose="batch")
    assert ([one.id for one in page.data], page.has_more) == ([ids[3], ids[2]], True)
    async for one in sdk.files.list(limit=1):
        await sdk.files.delete(one.id)
    assert (await sdk.files.list()).data == []


async def test_a_long_upload_passes_where_other_bodies_do_not(sdk: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    content = os.urandom(2**20)
    file_id = await uploaded(sdk, content)
    assert (await sdk.files.content(file_id)).content == content
    assert refused(await http.post("/v1/batches", json={"metadata": {"a": "x" * 30_000}})) == (413, "request_too_large", None)


async def test_a_file_that_is_too_long_is_refused(sdk: openai.AsyncOpenAI, http: httpx.AsyncClient, state: Path) -> None:
    before = on_disk(state)
    for length in (2**20 + 1, 2 * 2**20, 20 * 2**20):
        status, code, param, message = await refusal(uploaded(sdk, b"x" * length))
        assert (status, code, param) == (413, "request_too_large", "file")
        assert "1048576 bytes" in message
        assert "--max-file-mib" in message

    async def pieces(name: str) -> AsyncIterator[bytes]:
        """A form that does not say how long it is."""
        yield b'--b\r\nContent-Disposition: form-data; name="%s"; filename="x"\r\n\r\n' % name.encode()
        for _ in range(40):
            yield b"x" * 65_536

    for name in ("file", "ignored"):
        kind = {"content-type": "multipart/form-data; boundary=b"}
        assert refused(await http.post("/v1/files", content=pieces(name), headers=kind))[:2] == (413, "request_too_large")
    assert on_disk(state) == before


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(
    servers: Serving, state: Path, http: httpx.AsyncClient, tenant: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = on_disk(state)
    host, _, port = servers.http.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {tenant}\r\nContent-Length: 500000\r\n"
        client.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n".encode())
        client.sendall(b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + b"x" * 100_000)
        await until(lambda: on_disk(state) > before)
    await until(lambda: on_disk(state) == before)
    assert (await http.get("/v1/files")).json()["data"] == []
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"json": {"purpose": "batch"}}, None),
        ({"data": {"purpose": "batch"}}, None),
        ({"files": {"purpose": (None, b"batch")}}, "file"),
        ({"files": {"file": b"x"}}, "purpose"),
        ({"files": {"file": b"x"}, "data": {"purpose": "fine-tune"}}, "purpose"),
        ({"files": {"file": b"x"}, "data": {"purpose": "batch", "expires_after[seconds]": "1"}}, "expires_after[seconds]"),
        ({"files": {"file": b"x"}, "data": {"purpose": "batch"}, "headers": {"Idempotency-Key": "1"}}, "Idempotency-Key"),
    ],
)
async def test_wrong_uploads(http: httpx.AsyncClient, state: Path, body: dict[str, Any], param: str | None) -> None:
    before = on_disk(state)
    assert refused(await http.post("/v1/files", **body)) == (400, "invalid_request", param)
    assert on_disk(state) == before


async def test_a_batch_from_creation_to_cancellation(sdk: openai.AsyncOpenAI) -> None:
    file_id = await uploaded(sdk)
    batch = await sdk.batches.create(input_file_id=file_id, metadata={"night": "ü"}, **COMPLETIONS)
    assert (batch.status, batch.endpoint, batch.input_file_id, batch.model) == ("validating", "/v1/completions", file_id, "echo")
    assert (batch.object, batch.completion_window, batch.metadata) == ("batch", "24h", {"night": "ü"})
    assert batch.expires_at == batch.created_at + 24 * 3600
    assert (batch.errors, batch.output_file_id, batch.error_file_id, batch.in_progress_at) == (None, None, None, None)
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (0, 0, 0)
    assert await sdk.batches.retrieve(batch.id) == batch
    assert [one async for one in sdk.batches.list(limit=1)] == [batch]
    with pytest.raises(openai.ConflictError, match=batch.id) as conflict:
        await sdk.files.delete(file_id)
    assert conflict.value.code == "conflict"
    assert conflict.value.response.headers["x-should-retry"] == "false"  # SDKs would, for the status alone
    cancelled = await sdk.batches.cancel(batch.id)
    assert (cancelled.status, cancelled.cancelling_at is not None) == ("cancelling", True)
    assert await sdk.batches.cancel(batch.id) == cancelled


async def test_what_a_worker_does_is_told(sdk: openai.AsyncOpenAI, state: Path, tenant: str) -> None:
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    first = await sdk.batches.create(input_file_id=await uploaded(sdk), output_expires_after=expiry, **COMPLETIONS)
    second = await sdk.batches.create(input_file_id=await uploaded(sdk), **COMPLETIONS)
    worker = Store(state, Quotas(10**9, 10, 10**6))
    try:
        assert worker.batch(tenant, first.id).wanted.key_id == f"key of {tenant}"
        worker.begin(first.id, 3)
        worker.progress(first.id, Counts(3, 1, 1), Spent(30, 10, 5))
        running = await sdk.batches.retrieve(first.id)
        assert running.request_counts is not None
        assert running.usage is not None
        assert (running.status, running.request_counts.completed, running.request_counts.failed) == ("in_progress", 1, 1)
        assert (running.usage.input_tokens, running.usage.output_tokens, running.usage.total_tokens) == (30, 5, 35)
        assert running.usage.input_tokens_details.cached_tokens == 10
        worker.finalize(first.id)
        (state / "output").write_bytes(b"answers")
        (state / "errors").write_bytes(b"errors")
        worker.complete(first.id, Results(Counts(3, 2, 1), Spent(), state / "output", state / "errors"))
        worker.fail(second.id, [Problem("invalid_json_line", "line 2 is no JSON", 2), Problem("x", "y", None, "custom_id")])
    finally:
        worker.close()
    done = await sdk.batches.retrieve(first.id)
    assert done.output_file_id is not None
    assert done.error_file_id is not None
    assert (done.status, done.completed_at is not None, done.finalizing_at is not None) == ("completed", True, True)
    assert (await sdk.files.content(done.output_file_id)).content == b"answers"
    assert (await sdk.files.content(done.error_file_id)).content == b"errors"
    output = await sdk.files.retrieve(done.output_file_id)
    assert (output.purpose, output.expires_at) == ("batch_output", output.created_at + 3600)
    assert (await refusal(sdk.batches.create(input_file_id=done.output_file_id, **COMPLETIONS)))[:3] == (
        400,
        "invalid_request",
        "input_file_id",
    )
    assert (await refusal(sdk.batches.cancel(first.id)))[:2] == (409, "conflict")
    await sdk.files.delete(done.input_file_id)
    failed = await sdk.batches.retrieve(second.id)
    assert failed.errors is not None
    assert [one.model_dump() for one in failed.errors.data or ()] == [
        {"code": "invalid_json_line", "message": "line 2 is no JSON", "line": 2, "param": None},
        {"code": "x", "message": "y", "line": None, "param": "custom_id"},
    ]


@pytest.mark.parametrize(
    ("change", "status", "param", "words"),
    [
        ({"endpoint": "/v1/moderations"}, 400, "endpoint", "not supported by this server yet"),
        ({"endpoint": "/v1/models"}, 400, "endpoint", "must be one of /v1/chat/completions, /v1/completions"),
        ({"endpoint": None}, 400, "endpoint", "must be"),
        ({"completion_window": "1h"}, 400, "completion_window", "must be '24h'"),
        ({"input_file_id": "file-1"}, 404, "input_file_id", "file-1"),
        ({"input_file_id": 7}, 400, "input_file_id", "must be"),
        ({"metadata": {str(number): "" for number in range(17)}}, 400, "metadata", "at most 16"),
        ({"metadata": {"k" * 65: ""}}, 400, f"metadata.{'k' * 65}", "at most 64"),
        ({"metadata": {"k": "v" * 513}}, 400, "metadata.k", "at most 512"),
        ({"metadata": {"k": 1}}, 400, "metadata.k", "must be"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, 400, "output_expires_after.seconds", "3600"),
        ({"output_expires_after": {"seconds": 3600}}, 400, "output_expires_after.anchor", "required"),
    ],
)
async def test_wrong_batches(
    http: httpx.AsyncClient, sdk: openai.AsyncOpenAI, change: dict[str, Any], status: int, param: str, words: str
) -> None:
    good = {"input_file_id": await uploaded(sdk), **COMPLETIONS}
    most = {"metadata": {"k" * 62 + f"{number:02}": "ü" * 512 for number in range(16)}}
    limits = {"output_expires_after": {"anchor": "created_at", "seconds": 3600}, "unknown": {}}
    assert (await http.post("/v1/batches", json={**good, **most, **limits})).status_code == 200
    reply = await http.post("/v1/batches", json={**good, **change})
    assert refused(reply) == (status, "invalid_request" if status == 400 else "not_found", param)
    assert words in reply.json()["error"]["message"]


async def test_wrong_lists(http: httpx.AsyncClient) -> None:
    for path, most in (("/v1/files", 10_000), ("/v1/batches", 100)):
        assert (await http.get(path, params={"limit": most, "after": "nothing"})).json() == {
            "object": "list",
            "data": [],
            "first_id": None,
            "last_id": None,
            "has_more": False,
        }
        for limit in ("0", str(most + 1), "x", "9" * 30):
            assert refused(await http.get(path, params={"limit": limit})) == (400, "invalid_request", "limit")
    assert refused(await http.get("/v1/files", params={"order": "up"})) == (400, "invalid_request", "order")


async def test_names_of_nothing(http: httpx.AsyncClient) -> None:
    for name in NAMES_NOTHING:
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
            reply = await http.request(method, f"/v1/files/{name}{path}")
            assert reply.status_code in (404, 405), name
        for method, path in (("GET", ""), ("POST", "/cancel")):
            assert (await http.request(method, f"/v1/batches/{name}{path}")).status_code in (404, 405), name


async def test_what_is_anothers_does_not_exist(sdk: openai.AsyncOpenAI, other_sdk: openai.AsyncOpenAI, tenant: str) -> None:
    file_id = await uploaded(sdk)
    batch = await sdk.batches.create(input_file_id=file_id, **COMPLETIONS)
    other = other_sdk.with_options(default_headers={"X-Tenant": tenant})  # which is not believed of who has a key
    for ask in (other.files.retrieve, other.files.content, other.files.delete):
        assert (await refusal(ask(file_id)))[:2] == (404, "not_found")
    for ask_batch in (other.batches.retrieve, other.batches.cancel):
        assert (await refusal(ask_batch(batch.id)))[:2] == (404, "not_found")
    stolen = other.batches.create(input_file_id=file_id, **COMPLETIONS)
    assert (await refusal(stolen))[:3] == (404, "not_found", "input_file_id")
    for page in (await other.files.list(), await other.batches.list(), await other.files.list(after=file_id, order="asc")):
        assert page.data == []
    assert (await sdk.batches.retrieve(batch.id)).status == "validating"
    assert (await sdk.files.content(file_id)).content == LINES


async def test_quotas_name_the_limit(sdk: openai.AsyncOpenAI, other_sdk: openai.AsyncOpenAI) -> None:
    file_id = await uploaded(sdk)
    for _ in range(2):
        await sdk.batches.create(input_file_id=file_id, **COMPLETIONS)
    status, code, _, message = await refusal(sdk.batches.create(input_file_id=file_id, **COMPLETIONS))
    assert (status, code) == (403, "quota_exceeded")
    assert "max_tenant_batches" in message
    await uploaded(sdk, b"x" * 2**20)
    status, code, _, message = await refusal(uploaded(sdk, b"x" * 2**20))
    assert (status, code) == (403, "quota_exceeded")
    assert "max_tenant_mib" in message
    await uploaded(other_sdk, b"x" * 2**20)


async def test_a_key_of_other_models_creates_no_batch(shared_sdk: openai.AsyncOpenAI) -> None:
    sdk = shared_sdk.with_options(api_key=ELSEWHERE)
    file_id = await uploaded(sdk)
    assert (await refusal(sdk.batches.create(input_file_id=file_id, **COMPLETIONS)))[:2] == (404, "model_not_found")


async def test_without_keys_the_header_names_the_tenant(tmp_path: Path) -> None:
    acme = {"X-Tenant": "acme"}
    async with (
        serving(ScriptedClient(), state_dir=str(tmp_path / "state")) as running,
        openai.AsyncOpenAI(base_url=f"{running.http}/v1", api_key="none") as sdk,
        httpx.AsyncClient(base_url=running.http, verify=False, timeout=60) as http,
    ):
        anonymous = await uploaded(sdk)
        stored = await sdk.files.create(file=b"x", purpose="batch", extra_headers=acme)
        assert [one.id for one in (await sdk.files.list()).data] == [anonymous]
        assert [one.id for one in (await sdk.files.list(extra_headers=acme)).data] == [stored.id]
        assert (await refusal(sdk.files.retrieve(stored.id)))[0] == 404
        twice = [("X-Tenant", "acme"), ("X-Tenant", "globex")]
        wrong: Any
        for wrong in (twice, {"X-Tenant": "x" * 129}, {"X-Tenant": b"\x80"}):
            assert refused(await http.get("/v1/files", headers=wrong)) == (400, "invalid_request", "X-Tenant")


async def test_a_server_without_a_state_directory_says_so() -> None:
    async with serving(ScriptedClient()) as running, openai.AsyncOpenAI(base_url=f"{running.http}/v1", api_key="none") as sdk:
        work: Any
        for work in (
            uploaded(sdk),
            sdk.files.list(),
            sdk.files.retrieve("file-1"),
            sdk.files.content("file-1"),
            sdk.files.delete("file-1"),
            sdk.batches.create(input_file_id="file-1", **COMPLETIONS),
            sdk.batches.list(),
            sdk.batches.retrieve("batch_1"),
            sdk.batches.cancel("batch_1"),
        ):
            status, code, _, message = await refusal(work)
            assert (status, code) == (404, "not_found")
            assert message == "this server keeps no files and no batches: start it with --state-dir"


async def test_each_operation_is_a_route_of_its_own_in_the_metrics(http: httpx.AsyncClient) -> None:
    for path in ("/v1/files", "/v1/files/file-1", "/v1/files/file-1/content", "/v1/batches/batch_1", "/v1/models/a/b"):
        await http.get(path)
    await http.post("/v1/batches/batch_1/cancel")
    text = (await http.get("/metrics")).text
    found = {line.split('route="')[1].split('"')[0] for line in text.splitlines() if "http_requests_total{" in line}
    assert {
        "/v1/files",
        "/v1/files/{file_id}",
        "/v1/files/{file_id}/content",
        "/v1/batches/{batch_id}",
        "/v1/batches/{batch_id}/cancel",
        "/v1/models/{name:path}",
    } <= found
    assert not any("file-1" in route or "batch_1" in route for route in found)


async def test_many_uploads_at_once(sdk: openai.AsyncOpenAI) -> None:
    contents = [b"%d\n" % number * 1000 for number in range(20)]
    ids = await asyncio.gather(*(uploaded(sdk, content) for content in contents))
    found = await asyncio.gather(*(sdk.files.content(file_id) for file_id in ids))
    assert [one.content for one in found] == contents
