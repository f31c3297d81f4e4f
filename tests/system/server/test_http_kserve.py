"""KServe v2 over HTTP against a real server process with keys, beside the same over gRPC."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from jaxserve.proto import kserve_pb2 as pb
from jaxserve.proto.kserve_pb2_grpc import GRPCInferenceServiceStub
from tests.support.hash_server import HashServer, hash_server

KEY = "sesame"
MODEL = "/v2/models/hash"
LIMITED = {"max_tokens": 6, "temperature": 0}
JSON_BYTES = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    settings = {"api_key_hashes": [hashlib.sha256(KEY.encode()).hexdigest()]}
    with hash_server(tmp_path_factory.mktemp("server"), settings) as running:
        yield running


@pytest.fixture
def http(server: HashServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, headers={"authorization": f"Bearer {KEY}"}, timeout=30) as client:
        yield client


@pytest.fixture
def stub(server: HashServer) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield GRPCInferenceServiceStub(channel)


METADATA = (("authorization", f"Bearer {KEY}"),)


def tensor(name: str, value: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES" if isinstance(value, str) else "BOOL", "shape": [1], "data": [value]}


def body(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"inputs": [tensor("text_input", text), tensor("exclude_input_in_output", True)], "parameters": LIMITED, **fields}


def data_of(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 200, reply.text
    return {output["name"]: output["data"] for output in reply.json()["outputs"]}


def events_of(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n") if line.startswith("data: ")]


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", f"{MODEL}/ready", f"{MODEL}/versions/1/ready"])
def test_probes_need_no_key(server: HashServer, path: str) -> None:
    assert httpx.get(server.http + path, timeout=60).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in ("/v2", MODEL, f"{MODEL}/config", f"{MODEL}/stats", "/v2/models/stats", "/v2/models/ready")),
        *(("POST", f"{MODEL}/{what}") for what in ("infer", "generate", "generate_stream", "ready")),
        ("POST", "/v2/repository/index"),
    ],
)
def test_everything_else_does(server: HashServer, method: str, path: str) -> None:
    reply = httpx.request(method, server.http + path, timeout=60)
    assert (reply.status_code in (401, 405), isinstance(reply.json()["error"], str)) == (True, True)
    assert reply.status_code == 401 or path.endswith("/ready")


def test_what_it_is_is_told_as_over_grpc(http: httpx.Client, stub: GRPCInferenceServiceStub) -> None:
    told = stub.ServerMetadata(pb.ServerMetadataRequest(), metadata=METADATA)
    assert http.get("/v2").json() == {"name": told.name, "version": told.version, "extensions": list(told.extensions)}
    model = stub.ModelMetadata(pb.ModelMetadataRequest(name="hash"), metadata=METADATA)
    for path in (MODEL, f"{MODEL}/versions/1", f"{MODEL}/"):
        found = http.get(path).json()
        assert (found["name"], found["versions"], found["platform"]) == ("hash", ["1"], "jaxserve")
        for kind in ("inputs", "outputs"):
            assert found[kind] == [
                {"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in getattr(model, kind)
            ]
    config = http.get(f"{MODEL}/config").json()
    assert (config["name"], config["max_batch_size"], config["model_transaction_policy"]) == ("hash", 0, {"decoupled": True})
    assert config["input"][0] == {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1], "optional": False}
    same = stub.ModelConfig(pb.ModelConfigRequest(name="hash"), metadata=METADATA).config
    assert [one["name"] for one in config["output"]] == [one.name for one in same.output]


def test_the_index_lists_the_model(http: httpx.Client, stub: GRPCInferenceServiceStub) -> None:
    entry = {"name": "hash", "version": "1", "state": "READY", "reason": ""}
    assert http.post("/v2/repository/index").json() == [entry]
    assert http.post("/v2/repository/index", json={"ready": True}).json() == [entry]
    assert http.post("/v2/repository/index", json={"ready": 1}).status_code == 400
    (one,) = stub.RepositoryIndex(pb.RepositoryIndexRequest(), metadata=METADATA).models
    assert (one.name, one.version, one.state) == ("hash", "1", "READY")
    with pytest.raises(grpc.RpcError, match="there is one repository"):
        stub.RepositoryIndex(pb.RepositoryIndexRequest(repository_name="x"), metadata=METADATA)


def test_an_answer_is_that_of_grpc_and_of_completions(http: httpx.Client, stub: GRPCInferenceServiceStub) -> None:
    text = http.post("/v1/completions", json={"prompt": "hello", **LIMITED}).json()["choices"][0]["text"]
    names = ["text_output", "finish_reason", "num_output_tokens", "cumulative_logprob"]
    reply = http.post(f"{MODEL}/infer", json=body(id="mine", outputs=[{"name": name} for name in names]))
    found = reply.json()
    assert (found["id"], found["model_name"], found["model_version"]) == ("mine", "hash", "1")
    assert [(one["datatype"], one["shape"]) for one in found["outputs"]] == [("BYTES", [1])] * 2 + [
        ("FP32", [1]),
        ("UINT32", [1]),
    ]
    data = data_of(reply)
    assert (data["text_output"], data["finish_reason"], data["num_output_tokens"]) == ([text], ["length"], [6])
    request = pb.ModelInferRequest(model_name="hash")
    for name, value in (("text_input", b"hello"), ("exclude_input_in_output", None)):
        one = request.inputs.add(name=name, datatype="BYTES" if value else "BOOL", shape=[1])
        if value:
            one.contents.bytes_contents.append(value)
        else:
            one.contents.bool_contents.append(True)
    request.parameters["max_tokens"].int64_param = 6
    request.parameters["temperature"].double_param = 0
    (raw,) = stub.ModelInfer(request, metadata=METADATA).raw_output_contents
    assert raw[4:].decode() == text


def test_tensors_travel_as_bytes_too(http: httpx.Client) -> None:
    """As Triton's HTTP client sends and wants them."""
    (text,) = data_of(http.post(f"{MODEL}/infer", json=body()))["text_output"]
    contents = struct.pack("<I", 5) + b"hello" + b"\1"
    sent = {
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 9}},
            {"name": "exclude_input_in_output", "datatype": "BOOL", "shape": [1], "parameters": {"binary_data_size": 1}},
        ],
        "parameters": {**LIMITED, "binary_data_output": True},
    }
    head = json.dumps(sent).encode()
    reply = http.post(f"{MODEL}/infer", content=head + contents, headers={JSON_BYTES: str(len(head))})
    assert reply.status_code == 200, reply.text
    size = int(reply.headers[JSON_BYTES])
    (output,) = json.loads(reply.content[:size])["outputs"]
    assert output == {
        "name": "text_output",
        "datatype": "BYTES",
        "shape": [1],
        "parameters": {"binary_data_size": 4 + len(text.encode())},
    }
    assert reply.content[size + 4 :].decode() == text
    wanted = [{"name": "text_output", "parameters": {"binary_data": True}}, {"name": "num_input_tokens"}]
    mixed = http.post(f"{MODEL}/infer", json=body(outputs=wanted))
    one, other = json.loads(mixed.content[: int(mixed.headers[JSON_BYTES])])["outputs"]
    assert (one["parameters"]["binary_data_size"], other["data"]) == (4 + len(text.encode()), [5])
    for wrong in (str(len(head) + len(contents) + 1), "-1", "x", "9" * 30):
        assert http.post(f"{MODEL}/infer", content=head + contents, headers={JSON_BYTES: wrong}).status_code == 400
    assert http.post(f"{MODEL}/infer", content=head + contents + b"x", headers={JSON_BYTES: str(len(head))}).status_code == 400
    assert http.post(f"{MODEL}/infer", content=head + contents[:-1], headers={JSON_BYTES: str(len(head))}).status_code == 400


def test_generate_takes_a_text_and_parameters(http: httpx.Client) -> None:
    (text,) = data_of(http.post(f"{MODEL}/infer", json=body()))["text_output"]
    reply = http.post(f"{MODEL}/generate", json={"text_input": "hello", "parameters": LIMITED, "exclude_input_in_output": True})
    assert reply.json() == {"model_name": "hash", "model_version": "1", "text_output": text}
    whole = http.post(
        f"{MODEL}/versions/1/generate", json={"text_input": "hello", **LIMITED, "return_finish_reason": True, "id": "a"}
    )
    assert whole.json() == {**reply.json(), "id": "a", "text_output": f"hello{text}", "finish_reason": "length"}
    stopped = {"text_input": "hello", **LIMITED, "exclude_input_in_output": True, "stop": [text[1:3]]}
    assert http.post(f"{MODEL}/generate", json=stopped).json()["text_output"] == text[:1]
    two = http.post(f"{MODEL}/generate", json={"text_input": "hello", **LIMITED, "n": 2, "exclude_input_in_output": True})
    assert two.json()["text_output"] == [text, text]


def test_generate_stream_sends_events(http: httpx.Client) -> None:
    limited = {**LIMITED, "max_tokens": 60}  # a busy machine sends several tokens in an event
    given: dict[str, Any] = {"text_input": "hello", "parameters": {**limited, "stream": True}}
    events = events_of(http.post(f"{MODEL}/generate_stream", json=given))
    whole = http.post(f"{MODEL}/generate", json={"text_input": "hello", **limited, "exclude_input_in_output": True}).json()
    assert len(events) > 2
    assert "".join(event["text_output"] for event in events) == whole["text_output"]
    given["parameters"].pop("stream")
    (event,) = events_of(http.post(f"{MODEL}/generate_stream", json={**given, "exclude_input_in_output": True}))
    assert event == whole


@pytest.mark.parametrize(
    ("path", "given", "status", "param", "says"),
    [
        ("hash/infer", {}, 400, "inputs", "`inputs`"),
        ("hash/infer", {"inputs": []}, 400, "text_input", "is required"),
        (
            "hash/infer",
            {"inputs": [{"name": "text_input", "datatype": 5, "shape": [1]}]},
            400,
            "inputs[0].datatype",
            "$.inputs[0].datatype",
        ),
        ("hash/infer", {"inputs": [tensor("text_input", "a"), tensor("text_input", "b")]}, 400, "text_input", "given once"),
        ("hash/infer", {"inputs": [tensor("nonsense", "a")]}, 400, "inputs", "there is no input 'nonsense'"),
        ("hash/infer", {"inputs": [{**tensor("text_input", "a"), "data": []}]}, 400, "text_input", "one element"),
        ("hash/infer", {"inputs": [{**tensor("text_input", "a"), "data": [5]}]}, 400, "text_input", "a string"),
        (
            "hash/infer",
            {"inputs": [{**tensor("text_input", "a"), "shape": [2]}]},
            400,
            "text_input",
            "must have 2 elements, as its shape says",
        ),
        ("hash/infer", {"inputs": [{**tensor("text_input", "a"), "shape": [2**70]}]}, 400, "inputs[0].shape[0]", "64 bits"),
        ("hash/infer", body(parameters={"max_tokens": [1]}), 400, "parameters.max_tokens", "must be a string, a number"),
        ("hash/infer", body(parameters={"max_tokens": 0}), 400, "parameters.max_tokens", "max_tokens"),
        ("hash/infer", body(parameters={"guided_json": " "}), 400, "parameters.guided_json", "must be a text that is not empty"),
        ("hash/infer", body(outputs=[{"name": "x"}]), 400, "outputs", "there is no output 'x'"),
        ("hash/infer", {**body(), "inputs": [*body()["inputs"], tensor("stream", True)]}, 400, "stream", "generate_stream"),
        ("hash/generate", {}, 400, "text_input", "is required"),
        ("hash/generate", {"text_input": 5}, 400, "text_input", "a string"),
        ("hash/generate", {"text_input": "a", "stream": True}, 400, "stream", "generate_stream"),
        ("hash/generate", {"text_input": "a", "n": 1, "parameters": {"n": 1}}, 400, "n", "in parameters too"),
        ("hash/generate", {"text_input": "a", "stop": ["a"], "sampling_parameters": "{}"}, 400, "stop", "belongs into"),
        ("hash/generate", {"text_input": "a", "temperature": -1}, 400, "parameters.temperature", "temperature"),
        ("hash/generate_stream", {"text_input": "a", "max_tokens": 10**6}, 400, "parameters.max_tokens", "context"),
        ("other/infer", body(), 404, "model", "not served here"),
        ("hash/versions/2/infer", body(), 404, "model_version", "no version '2'"),
    ],
)
def test_what_cannot_be_is_named(
    http: httpx.Client, path: str, given: dict[str, Any], status: int, param: str | None, says: str
) -> None:
    reply = http.post(f"/v2/models/{path}", json=given)
    error = reply.json()
    assert (reply.status_code, error["param"]) == (status, param), error
    assert says in error["error"]


def test_bodies_that_are_no_requests(http: httpx.Client) -> None:
    for content in (b"", b"{", b"[]", b"null", b'{"text_input": "\xff"}', b"[" * 100_000, b'{"text_input": "\\ud800"}'):
        for what in ("infer", "generate", "generate_stream"):
            reply = http.post(f"{MODEL}/{what}", content=content)
            assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request"), content[:20]
    for path in ("/v2/nothing", f"{MODEL}/infer/x"):
        assert isinstance(http.post(path).json()["error"], str)


def test_statistics_count_what_was_done(http: httpx.Client, stub: GRPCInferenceServiceStub) -> None:
    def stats() -> dict[str, Any]:
        models: list[dict[str, Any]] = http.get(f"{MODEL}/stats").json()["model_stats"]
        (one,) = models
        assert one["name"] == "hash"
        return one

    before = stats()
    assert http.post(f"{MODEL}/infer", json=body()).status_code == 200
    assert http.post(f"{MODEL}/infer", json=body(parameters={"max_tokens": 10**6})).status_code == 400
    after = stats()
    assert after["inference_count"] == before["inference_count"] + 1
    assert after["execution_count"] >= before["execution_count"]
    for name in ("success", "queue", "compute_infer"):
        assert after["inference_stats"][name]["count"] == before["inference_stats"][name]["count"] + 1, name
        assert after["inference_stats"][name]["ns"] > before["inference_stats"][name]["ns"], name
    assert after["inference_stats"]["fail"]["count"] == before["inference_stats"]["fail"]["count"] + 1
    (one,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name="hash"), metadata=METADATA).model_stats
    assert one.inference_stats.success.count == after["inference_stats"]["success"]["count"]
    assert http.get("/v2/models/other/stats").status_code == 404
