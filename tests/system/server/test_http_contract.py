"""The server keeps to its own OpenAPI document, and answers whatever bytes come in."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.hash_server import hash_server
from tests.support.serve_process import ROOT

# Everything is as it comes, but for refusals of token counts.
CONFIG = 'hooks = "tests.support.token_counts"'
EXAMPLES = "4"  # of each operation, besides those that cover each constraint of its schema
JSON = {"content-type": "application/json"}
SAY: list[dict[str, str]] = [{"role": "user", "content": "hi"}]
GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/chat/completions": {"messages": SAY, "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": SAY, "max_tokens": 2},
    "/inference/v1/generate": {"token_ids": [65], "sampling_params": {"max_tokens": 2}},
    "/v1/messages/count_tokens": {"messages": SAY},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [65]},
}
GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate")
NINES = b"9" * 5000
DEEP = b"[" * 200_000

NO_JSON = [
    b"",
    b"{",
    b"nan",
    b"\xef\xbb\xbf{}",
    '{"prompt": "hi"}'.encode("utf-16"),
    DEEP,
    b'{"a":' * 100_000,
    *(b'{"x":%s}' % wrong for wrong in (DEEP, b'"\xff"', b"01", b"'a'")),
    b'{"\xff": 1}',
]
ODD_VALUES = {
    b"NaN": "x must be a finite number",
    b"-Infinity": "x must be a finite number",
    b"1e999": "x must be a finite number",
    b"9" * 20: "x must be an integer of 64 bits",
    b'"\\ud800"': "x has half of a surrogate pair",
    b'[{"\\ud800": 1}]': "x[0] has the name",
    b"[" * 300 + b"]" * 300: "x[0][0]",
}
NO_OBJECTS = [b"null", b"[]", b"[{}]", b'"x"', b"1", b"true"]
IGNORED = [b'"x":"\\u0000"', b'"\\u0000":1', b'"x":%s%s' % (b"[" * 190, b"]" * 190), b'"x":1e308', b'"x":1,"x":2', b'"":{}']
WRONG = {
    b'"temperature":%s' % NINES: "temperature",
    b'"temperature":1e308': "temperature",
    b'"temperature":[]': "temperature",
    b'"temperature":0,"temperature":-1': "temperature",
    b'"top_k":%s' % (b"9" * 400): "top_k",
    b'"top_k":1.5': "top_k",
    b'"top_k":"1e3"': "top_k",
    b'"temperature":"%s"' % NINES: "temperature",
    b'"seed":"%s"' % NINES: "seed",
    b'"seed":-%s' % (b"9" * 4000): "seed",
    b'"min_tokens":%s' % (b"9" * 300): "min_tokens",
    b'"max_total_tokens":-1': "max_total_tokens",
    b'"logit_bias":{"%s":1}' % NINES: "logit_bias",
    b'"logit_bias":{"\\u0663":1}': "logit_bias",
    b'"logit_bias":{"":1}': "logit_bias",
    b'"allowed_token_ids":[%s]' % (b"9" * 300): "allowed_token_ids",
    b'"stop_token_ids":[-1]': "stop_token_ids",
    b'"timeout":0': "timeout",
    b'"queue_timeout":-1e308': "queue_timeout",
    b'"request_id":""': "request_id",
    b'"request_id":"%s"' % (b"x" * 257): "request_id",
    b'"cache_salt":""': "cache_salt",
    b'"service_class":"\\u0000"': "service_class",
    b'"model":{}': "model",
    b'"stream":"yes"': "stream",
    b'"best_of":%s' % (b"9" * 300): "best_of",
    b'"structured_outputs":{"a":%s%s}' % (b"[" * 800, b"]" * 800): "structured_outputs",
    b'"priority":7': "priority",
}
HEADERS: list[dict[str, Any]] = [
    {"x-request-id": b"\xff\xfe"},
    {"x-request-id": b"x" * 5000},
    {"x-tenant": b"\xff"},
    {"accept": b"image/png"},
    {"authorization": b"Bearer \xff\xfe"},
    {"authorization": b"Basic x"},
    {"x-api-key": b"\x80"},
    {"host": b"[::bad"},
    {"content-encoding": b"gzip"},
    {"traceparent": b"\xff"},
]
CONTENT_TYPES = [
    None,
    "text/plain",
    "multipart/form-data",
    "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded",
    "garbage",
    b"\xe9",
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hash_server(tmp_path_factory.mktemp("hash"), {"state_dir": str(tmp_path_factory.mktemp("state"))}) as server:
        yield server.http


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


def with_field(path: str, field: bytes) -> bytes:
    return json.dumps(GOOD[path]).encode()[:-1] + b"," + field + b"}"


def refused(reply: httpx.Response, path: str) -> tuple[str | None, str]:
    """The field at fault and the message of a refusal that has the shape of its path."""
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    if path.startswith("/v1/messages"):
        assert (reply.json()["type"], error["type"]) == ("error", "invalid_request_error")
        return None, error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    return error["param"], error["message"]


# The first cover each constraint of every schema; the others add random bodies, and links between operations.
PHASES = ["examples,coverage", pytest.param("examples,coverage,fuzzing,stateful", marks=pytest.mark.extended)]


@pytest.mark.parametrize("phases", PHASES)
def test_schemathesis_finds_nothing(url: str, tmp_path: Path, phases: str) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    bounds = ("--phases", phases, "--max-examples", EXAMPLES, "--seed", "1", "--warnings", "off")
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", *bounds]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", GOOD)
def test_bodies_that_are_no_json_objects(client: httpx.Client, path: str) -> None:
    for content in NO_JSON:
        assert "JSON" in refused(client.post(path, content=content, headers=JSON), path)[1]
    for content in NO_OBJECTS:
        assert "JSON object" in refused(client.post(path, content=content, headers=JSON), path)[1]


@pytest.mark.parametrize("path", GOOD)
def test_odd_values_are_refused_by_their_place(client: httpx.Client, path: str) -> None:
    for value, message in ODD_VALUES.items():
        assert refused(client.post(path, content=b'{"x":%s}' % value, headers=JSON), path)[1].startswith(message), value[:80]


@pytest.mark.parametrize("path", GOOD)
def test_content_types(client: httpx.Client, path: str) -> None:
    content = json.dumps(GOOD[path]).encode()
    for kind in CONTENT_TYPES:
        headers: Any = {} if kind is None else {"content-type": kind}
        assert "application/json" in refused(client.post(path, content=content, headers=headers), path)[1]
    for accepted in ("application/json; charset=utf-8", "application/problem+json"):
        assert client.post(path, content=content, headers={"content-type": accepted}).status_code == 200


@pytest.mark.parametrize("path", GOOD)
def test_what_is_not_known_is_ignored_however_odd(client: httpx.Client, path: str) -> None:
    for field in IGNORED:
        assert client.post(path, content=with_field(path, field), headers=JSON).status_code == 200


@pytest.mark.parametrize("path", GENERATING)
def test_wrong_values_are_refused_by_name(client: httpx.Client, path: str) -> None:
    for field, name in WRONG.items():
        reply = client.post(path, content=with_field(path, field), headers=JSON)
        assert reply.status_code == 400, field[:80]
        param, message = refused(reply, path)
        if field.startswith(b'"temperature":9'):
            continue  # no number that JSON's reader takes
        assert message.startswith(name), (field[:80], message)
        assert path == "/v1/messages" or param is not None
        assert param is None or param.startswith(name)


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("value", [5, None, [None], [[]], {}, [10**400], [{"role": "user", "content": 1}], True])
def test_prompts_of_wrong_shapes(client: httpx.Client, path: str, value: Any) -> None:
    name = next(iter(GOOD[path]))
    assert refused(client.post(path, json={**GOOD[path], name: value}), path)[1].startswith(name)


def test_headers_that_are_no_text(client: httpx.Client) -> None:
    for headers in HEADERS:
        reply = client.post("/v1/completions", json=GOOD["/v1/completions"], headers=headers)
        assert reply.status_code in ((403,) if "host" in headers else (200, 400)), (headers, reply.text)


@pytest.mark.parametrize(
    "path", ["/v1/models/%ff", "/v1/models/%00", f"/v1/models/{'x' * 5000}", "/v1/models/%F0%9F%98%80?x=%ff"]
)
def test_names_of_models_that_are_no_text(client: httpx.Client, path: str) -> None:
    assert (client.get(path).status_code, client.get(path).json()["error"]["code"]) == (404, "model_not_found")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(path=st.sampled_from(sorted(GOOD)), noise=st.binary(max_size=4), data=st.data())
def test_damaged_bodies(client: httpx.Client, path: str, noise: bytes, data: st.DataObject) -> None:
    good = json.dumps(GOOD[path]).encode()
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, len(good)))
    reply = client.post(path, content=good[:start] + noise + good[end:], headers=JSON)
    if reply.status_code != 200:
        assert refused(reply, path)[1]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_prompt_that_is_only_scored_from_a_position_on(client: httpx.Client, path: str) -> None:
    body = {**GOOD[path], "max_tokens": 0, "prompt_logprobs": 0}
    reply = client.post(path, json={**body, "prompt_logprobs_start": 1}).json()
    (choice,) = reply["choices"]
    scores = (reply if path.startswith("/v1/chat") else choice)["prompt_logprobs"]
    assert choice["finish_reason"] == "length"
    assert (choice["text"] if path == "/v1/completions" else choice["message"]["content"]) == ""
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (len(scores), 0)
    assert [score is None for score in scores] == [True] + [False] * (len(scores) - 1)
    last = client.post(path, json={**body, "prompt_logprobs_start": len(scores) - 1})
    assert last.json()["choices"][0]["finish_reason"] == "length"
    assert refused(client.post(path, json={**body, "prompt_logprobs_start": len(scores)}), path)[0] == "prompt_logprobs_start"
    with client.stream("POST", path, json={**body, "stream": True}) as stream:
        lines = [line for line in stream.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert sum('"finish_reason":"length"' in line for line in lines) == 1


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_scores_from_a_position_on_are_of_text_and_chat_alone(client: httpx.Client, path: str) -> None:
    assert refused(client.post(path, json={**GOOD[path], "prompt_logprobs_start": 1}), path)[1].startswith(
        "prompt_logprobs_start"
    )
