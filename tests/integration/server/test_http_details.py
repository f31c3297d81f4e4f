"""HTTP as it is on the wire: bad input, headers, frames, clients that go away."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxserve.errors import ErrorCode
from server.errors import OUTCOMES
from tests.support.scripted import HERMES, MAX_MODEL_LEN, VOCAB, ScriptedClient
from tests.support.serving import Serving, serving

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"prompt": "hi"}
BOTH = {"/v1/chat/completions": CHAT, "/v1/completions": TEXT}
AT_START = {ErrorCode.CONFIG, ErrorCode.CHECKPOINT, ErrorCode.UNSUPPORTED_MODEL}
OF_FILES = {ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.QUOTA_EXCEEDED, ErrorCode.STORAGE_FULL}
JSON = {"content-type": "application/json"}


def error_of(reply: httpx.Response) -> dict[str, Any]:
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 2),
        ("top_k", -2),
        ("min_p", 1.5),
        ("max_tokens", 0),
        ("n", 0),
        ("n", 10**6),
        ("stop", ["x"] * 17),
        ("stop", [""]),
        ("presence_penalty", 3),
        ("repetition_penalty", 0),
        ("prompt_logprobs", 1000),
        ("seed", 2**70),
        ("logit_bias", {"x": 1}),
        ("response_format", {"type": "xml"}),
    ],
)
async def test_bad_fields(http: httpx.AsyncClient, field: str, value: Any) -> None:
    for path, body in BOTH.items():
        for stream in (False, True):
            reply = await http.post(path, json={**body, "stream": stream, field: value})
            error = error_of(reply)
            assert (reply.status_code, error["param"], error["code"]) == (400, field, "invalid_request")
            assert field in error["message"]


@pytest.mark.parametrize(
    ("prompt", "param", "words"),
    [
        ("", "prompt", "empty"),
        ([], "prompt", "empty"),
        ([[]], "prompt[0]", "empty"),
        (["hi", ""], "prompt[1]", "empty"),
        ("x" * MAX_MODEL_LEN, "prompt", str(MAX_MODEL_LEN)),
        ([1, VOCAB], "prompt", str(VOCAB)),
        ([-1], "prompt", str(VOCAB)),
        ([2**80], "prompt[0]", "64 bits"),
    ],
)
async def test_bad_prompts(http: httpx.AsyncClient, prompt: Any, param: str, words: str) -> None:
    for stream in (False, True):
        reply = await http.post("/v1/completions", json={"prompt": prompt, "stream": stream})
        error = error_of(reply)
        assert (reply.status_code, error["param"]) == (400, param)
        assert words in error["message"]


async def test_too_long_conversation(http: httpx.AsyncClient) -> None:
    message = {"role": "user", "content": "x" * MAX_MODEL_LEN}
    error = error_of(await http.post("/v1/chat/completions", json={"messages": [message]}))
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert error_of(await http.post("/v1/chat/completions", json={"messages": []}))["param"] == "messages"


async def test_errors_name_the_field_the_client_used(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/chat/completions", json={**CHAT, "max_completion_tokens": 0})
    assert error_of(reply)["param"] == "max_completion_tokens"
    reply = await http.post("/v1/chat/completions", json={**CHAT, "logprobs": True, "top_logprobs": 99})
    assert error_of(reply)["param"] == "top_logprobs"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "hi", "temperature": NaN}',
        b'{"prompt": "hi", "temperature": 1e999}',
        b"[" * 200_000,
        b"null",
        b'"hi"',
        b"[1]",
    ],
)
async def test_bodies_that_are_not_json_objects(http: httpx.AsyncClient, content: bytes) -> None:
    reply = await http.post("/v1/completions", content=content, headers=JSON)
    assert (reply.status_code, error_of(reply)["type"]) == (400, "invalid_request_error")


async def test_body_without_a_json_content_type(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/completions", content=b'{"prompt": "hi"}', headers={"content-type": "text/plain"})
    assert reply.status_code == 400
    assert "application/json" in error_of(reply)["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing/here", 404, "not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("PATCH", "/v1/files/file-1", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/echo", 405, "method_not_allowed"),
        ("GET", "/v1/models/no/such", 404, "model_not_found"),
    ],
)
async def test_wrong_paths_and_methods(http: httpx.AsyncClient, method: str, path: str, status: int, code: str) -> None:
    reply = await http.request(method, path)
    assert (reply.status_code, error_of(reply)["code"]) == (status, code)
    allowed = {"/v1/completions": "POST", "/v1/files/file-1": "DELETE, GET, HEAD", "/v1/models/echo": "GET, HEAD"}
    assert reply.headers.get("allow") == (allowed[path] if status == 405 else None)


async def test_unexpected_exceptions_keep_their_secrets(
    http: httpx.AsyncClient, engine: ScriptedClient, caplog: pytest.LogCaptureFixture
) -> None:
    engine.failure = RuntimeError("a secret")
    with caplog.at_level(logging.ERROR):
        reply = await http.post("/v1/completions", json=TEXT, headers={"x-request-id": "mine"})
    assert (reply.status_code, error_of(reply)["code"]) == (500, "internal_error")
    assert "secret" not in reply.text
    assert "a secret" in caplog.text
    assert reply.headers["x-request-id"] == "mine"


async def test_request_ids(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health", headers={"x-request-id": "mine"})).headers["x-request-id"] == "mine"
    ids = {(await http.get("/health")).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    assert (await http.get("/nothing")).headers["x-request-id"]


async def test_about(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).json() == {"status": "ok"}
    assert set((await http.get("/version")).json()) == {"version"}


async def test_openapi_tells_the_truth_about_errors(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    paths = document["paths"]
    assert {*BOTH, "/v1/responses", "/v1/messages", "/v1/models", "/tokenize", "/detokenize", "/health"} <= paths.keys()
    for path in (*BOTH, "/v1/responses", "/v1/messages"):
        answers = paths[path]["post"]["responses"]
        of_others = AT_START | OF_FILES - {ErrorCode.CONFLICT}  # of which a key can be one
        statuses = {outcome.http for code, outcome in OUTCOMES.items() if code not in of_others}
        assert {int(status) for status in answers} == {200, *statuses}
        assert "Retry-After" in answers["429"]["headers"]
        assert "Retry-After" not in answers["400"]["headers"]
        assert set(answers["200"]["content"]) == {"application/json", "text/event-stream"}
        kind = "AnthropicErrorBody" if path == "/v1/messages" else "ErrorBody"
        assert answers["422"]["content"]["application/json"]["schema"]["$ref"].endswith(f"/{kind}")
    operations = [operation for path in paths.values() for operation in path.values()]
    assert not any("HTTPValidationError" in str(operation) for operation in operations)
    assert document["components"]["schemas"]["ChatRequest"]["properties"]["n"]["maximum"] == 128
    assert isinstance(document["components"]["schemas"]["ChatRequest"]["properties"]["n"]["maximum"], int)


@pytest.fixture
async def storing(engine: ScriptedClient, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Of a server that keeps files."""
    async with (
        serving(engine, state_dir=str(tmp_path)) as running,
        httpx.AsyncClient(base_url=running.http, timeout=60) as client,
    ):
        yield client


async def test_examples_of_the_document_work(storing: httpx.AsyncClient, engine: ScriptedClient) -> None:
    engine.response_template = HERMES
    document = (await storing.get("/openapi.json")).json()
    schemas, tried = document["components"]["schemas"], 0
    stored = (await storing.post("/v1/files", data={"purpose": "batch"}, files={"file": b"{}"})).json()
    for path, methods in document["paths"].items():
        schema = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        for reference in schema.get("anyOf", schema.get("oneOf", [schema])):
            for example in schemas.get(reference.get("$ref", "").rsplit("/", 1)[-1], {}).get("examples", ()):
                named = {"input_file_id": stored["id"]} if "input_file_id" in example else {}
                reply = await storing.post(path, json={**example, **named})
                assert reply.status_code == 200, reply.text
                kind = "text/event-stream" if example.get("stream") else "application/json"
                assert not reply.content or reply.headers["content-type"].startswith(kind)
                tried += 1
    assert tried >= 10


def described(value: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property and parameter of a document, with where it is."""
    if isinstance(value, dict):
        for name, property_ in (value.get("properties") or {}).items() if where.rpartition("/")[2] != "not" else ():
            yield f"{where}/{name}", property_
        parameters = value.get("parameters")  # a field may be called so
        for parameter in parameters if isinstance(parameters, list) else ():
            yield f"{where}/{parameter['name']}", parameter
    for name, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if name not in ("example", "examples"):
            yield from described(item, f"{where}/{name}")


async def test_every_field_of_the_document_is_described(storing: httpx.AsyncClient) -> None:
    document = (await storing.get("/openapi.json")).json()
    fields = [(where, field) for where, field in described(document) if "/not/" not in where]
    assert len(fields) > 400
    assert [where for where, field in fields if not field.get("description")] == []


async def test_the_document_tells_this_servers_bounds_and_defaults(storing: httpx.AsyncClient) -> None:
    schemas = (await storing.get("/openapi.json")).json()["components"]["schemas"]
    chat = schemas["ChatRequest"]["properties"]
    assert (chat["max_tokens"]["maximum"], chat["temperature"]["default"], chat["n"]["default"]) == (MAX_MODEL_LEN, 1, 1)
    assert ("default" in chat["max_tokens"], schemas["CompletionRequest"]["properties"]["max_tokens"]["default"]) == (False, 16)
    (ids, _) = chat["stop_token_ids"]["anyOf"]
    assert ids["items"]["maximum"] == VOCAB - 1
    number, text, _ = chat["top_p"]["anyOf"]
    assert (number["type"], re.fullmatch(text["pattern"], "0.95") is None) == ("number", False)


async def test_the_page_needs_neither_scripts_nor_the_network() -> None:
    async with (
        serving(ScriptedClient(), allowed_hosts="*") as servers,
        httpx.AsyncClient(base_url=servers.http, timeout=60) as http,
    ):
        reply = await http.get("/docs", headers={"host": "<b>x</b>"})
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for words in (
        "/v1/messages/count_tokens",
        "keep only so many tokens",
        "What is 17 + 25?",
        "&lt;b&gt;x&lt;/b&gt;",
        "<li><code>X-Tenant</code> names the tenant",  # rendered
        "default <code>1</code>",
        '<a href="#Message">Message</a>',
        "<code>xtc_probability</code>",
        "response_format in chat and completions",
        "-F purpose",
    ):
        assert words in reply.text
    for tag in ("<script", "<link", "<img", "<b>x", "src=", "@import"):
        assert tag not in reply.text


async def test_frames_of_a_stream(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/completions", json={**TEXT, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = reply.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["h", "i", ""]
    assert all("usage" not in chunk for chunk in chunks)


async def test_an_error_in_mid_stream_is_the_last_event(http: httpx.AsyncClient, engine: ScriptedClient) -> None:
    engine.failure, engine.fail_after = RuntimeError("a secret"), 1
    reply = await http.post("/v1/completions", json={**TEXT, "stream": True})
    *_, last, rest = reply.text.split("\n\n")
    assert (reply.status_code, rest) == (200, "")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "internal_error"


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_aborts(servers: Serving, engine: ScriptedClient, path: str, stream: bool) -> None:
    engine.delay = 0.01
    body = json.dumps({**BOTH[path], "stream": stream, "messages": [{"role": "user", "content": "x" * 200}]})
    if path == "/v1/completions":
        body = json.dumps({"prompt": ["x" * 200, "y" * 200], "stream": stream, "max_tokens": 200})
    host, port = servers.http.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    await writer.drain()
    async with asyncio.timeout(60):
        while not engine.active:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        started = len(engine.active)
        writer.close()
        await writer.wait_closed()
        while engine.active:
            await asyncio.sleep(0.005)
    assert len(engine.aborted) == started == (1 if "chat" in path else 2)


async def test_a_client_that_goes_away_before_the_first_token_aborts(servers: Serving, engine: ScriptedClient) -> None:
    engine.delay = 60.0
    async with httpx.AsyncClient(base_url=servers.http, timeout=60) as client, asyncio.timeout(60):
        asking = asyncio.create_task(client.post("/v1/completions", json={**TEXT, "stream": True}))
        while not engine.active:
            await asyncio.sleep(0.005)
        asking.cancel()
        while engine.active:
            await asyncio.sleep(0.005)
    assert len(engine.aborted) == 1


async def test_keep_alive_connections_serve_many_requests(http: httpx.AsyncClient) -> None:
    for stream in (False, True) * 5:
        assert (await http.post("/v1/completions", json={**TEXT, "stream": stream})).status_code == 200
