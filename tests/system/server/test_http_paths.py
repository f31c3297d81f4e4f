"""Paths as browsers, probes and clients spell them, on a real server process with a key and files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import httpx
import msgspec
import openai
import pytest
import zmq

from server.http.middleware import canonical
from tests.support.hash_server import HashServer, hash_server, until

KEY = "sesame"
PROMPT = {"prompt": "hello", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    folder = tmp_path_factory.mktemp("server")
    settings = {"api_key_hashes": [hashlib.sha256(KEY.encode()).hexdigest()], "state_dir": str(folder / "state")}
    events = f'{{"enable_kv_cache_events": true, "endpoint": "ipc://{folder}/events", "topic": "kv@one@hash"}}'
    with hash_server(folder, settings, step_seconds=0.002, kv_events_config=events) as running:
        yield running


@pytest.fixture
def http(server: HashServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, headers={"x-api-key": KEY}, timeout=30) as client:
        yield client


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("/", "/"),
        ("//", "/"),
        ("/health/", "/health"),
        ("/v1/models/", "/v1/models"),
        ("/models/a/b", "/v1/models/a/b"),
        ("/chat/completions/", "/v1/chat/completions"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/modelsx", "/modelsx"),
        ("/v2/models/a", "/v2/models/a"),
    ],
)
def test_a_path_means_one_operation(given: str, meant: str) -> None:
    assert canonical(given) == meant


@pytest.mark.parametrize("path", ["/v1/completions/", "/completions", "/completions/"])
def test_a_body_arrives_whatever_the_spelling(http: httpx.Client, path: str) -> None:
    usual = http.post("/v1/completions", json=PROMPT).json()
    reply = http.post(path, json=PROMPT)
    assert (reply.status_code, reply.history) == (200, [])
    assert reply.json()["choices"] == usual["choices"]


def test_an_sdk_without_the_version_in_its_address(server: HashServer) -> None:
    with openai.OpenAI(base_url=server.http, api_key=KEY, max_retries=0) as sdk:
        (model,) = sdk.models.list()
        assert sdk.models.retrieve(model.id) == model
        uploaded = sdk.files.create(file=b'{"custom_id": "1"}\n', purpose="batch")
        assert sdk.files.content(uploaded.id).read() == b'{"custom_id": "1"}\n'
        stream = sdk.completions.create(model=model.id, prompt="hello", max_tokens=4, temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream)


def test_another_spelling_is_no_way_around_the_key(server: HashServer) -> None:
    for method, path in (
        *(("POST", path) for path in ("/completions", "/v1/completions/", "/reset_prefix_cache/")),
        *(("GET", path) for path in ("/models", "/models/", "/load", "/load/", "/server_info", "/get_server_info")),
        *(("HEAD", path) for path in ("/v1/models", "/load")),
    ):
        assert httpx.request(method, server.http + path, timeout=60).status_code == 401, path
    assert httpx.get(f"{server.http}/ping", timeout=60).status_code == 200


def test_idempotency_keys_know_the_operation_not_its_spelling(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": "spelling"}
    first = http.post("/v1/completions", json=PROMPT, headers=headers)
    again = http.post("/completions/", json=PROMPT, headers=headers)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.content == first.content


def test_head_is_get_without_the_body(http: httpx.Client) -> None:
    uploaded = http.post("/v1/files", files={"file": ("a.jsonl", b"{}\n")}, data={"purpose": "batch"}).json()["id"]
    document = http.get("/openapi.json").json()
    paths = [path for path, operations in document["paths"].items() if "get" in operations and "{" not in path]
    paths[paths.index("/debug/engine")] += "?frames=1"  # by itself it does not end
    assert {"/health", "/ready", "/metrics", "/v1/models", "/load", "/server_info", "/ping", "/v1/batches"} <= set(paths)
    for path in (*paths, "/", "/docs", "/openapi.json", f"/v1/files/{uploaded}", f"/v1/files/{uploaded}/content", "/models/hash"):
        got, head = http.get(path), http.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert head.status_code == 200
        assert head.headers["content-type"] == got.headers["content-type"], path
    assert http.get("/health").json() == {"status": "ok"}  # the connection is as it should be


def test_head_of_what_takes_no_get_and_of_nothing(http: httpx.Client) -> None:
    reply = http.head("/v1/completions")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert http.head("/nothing").status_code == 404


def test_platforms_ping(server: HashServer) -> None:
    for reply in (httpx.get(f"{server.http}/ping", timeout=60), httpx.post(f"{server.http}/ping", timeout=60)):
        assert (reply.status_code, reply.json()) == (200, {"status": "ok"})


def test_the_load_counts_what_runs(http: httpx.Client) -> None:
    body = {"prompt": "hello", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as reply:
        until(lambda: http.get("/load").json()["server_load"] == 1)
        assert sum(map(len, reply.iter_bytes()))
    until(lambda: http.get("/load").json() == {"server_load": 0, "running": 0, "waiting": 0, "kv_cache_usage": 0.0})


def test_whoever_follows_the_cache_is_told_where(server: HashServer, http: httpx.Client) -> None:
    (source,) = http.get("/kv_event_sources").json()
    assert source["endpoint"].endswith("/events")
    with zmq.Context() as context, context.socket(zmq.SUB) as live:
        live.setsockopt(zmq.SUBSCRIBE, b"kv@one@")
        live.connect(source.pop("endpoint"))
        reset = 0
        while not live.poll(20):  # until it has subscribed
            assert http.post("/reset_prefix_cache").status_code == 200
            assert (reset := reset + 1) < 1000
        topic, _, payload = live.recv_multipart()
    assert source == {"data_parallel_rank": 0, "replay_endpoint": None, "topic": topic.decode()}
    assert msgspec.msgpack.decode(payload)[1:] == [[["AllBlocksCleared"]], 0]
    assert httpx.get(f"{server.http}/kv_event_sources", timeout=60).status_code == 401


def test_what_runs_is_told_without_settings(server: HashServer, http: httpx.Client) -> None:
    told = http.get("/server_info")
    info = told.json()
    assert (info["served_model_name"], info["max_model_len"], info["dtype"]) == ("hash", 256, "float32")
    assert info["load"].keys() == {"server_load", "running", "waiting", "kv_cache_usage"}
    assert http.get("/get_server_info").json().keys() == info.keys()
    assert hashlib.sha256(KEY.encode()).hexdigest() not in told.text
    assert "/" not in told.text
