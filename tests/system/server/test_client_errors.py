"""Errors, numbers and fingerprints as clients of other servers expect them, on one real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import openai
import pytest

from jaxserve.proto import kserve_pb2 as kserve
from jaxserve.proto.inference_pb2 import GenerateRequest
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.proto.kserve_pb2_grpc import GRPCInferenceServiceStub
from server.kserve.tensors import texts
from tests.support.hash_engine import CONTEXT
from tests.support.hash_server import HashServer, hash_server, until

SAY = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAY, "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": SAY, "max_tokens": 2},
}
LENGTHS = {"/v1/responses": "max_output_tokens"}
BRIEF = 1e-6  # seconds that nothing is done in


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    with hash_server(tmp_path_factory.mktemp("hash"), {"state_dir": str(tmp_path_factory.mktemp("state"))}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: HashServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def channel(server: HashServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel


@pytest.mark.parametrize("path", BODIES)
def test_a_prompt_that_is_too_long_is_called_so(client: httpx.Client, path: str) -> None:
    field = next(iter(BODIES[path]))
    for text in (
        " ".join(map(str, range(CONTEXT))),
        "x" * 1_000_000,
    ):  # the one too long in tokens, the other before that is known
        long = [{"role": "user", "content": text}] if field == "messages" else text
        error = client.post(path, json={**BODIES[path], field: long}).json()["error"]
        assert error.get("code", "context_length_exceeded") == "context_length_exceeded"
        assert error["message"].startswith(f"{field} has ")
        assert error["message"].endswith("the prompt is too long")


@pytest.mark.parametrize("path", BODIES)
def test_numbers_that_are_texts(client: httpx.Client, path: str) -> None:
    name = LENGTHS.get(path, "max_tokens")
    numbers = {name: "3", "top_k": 5.0, "temperature": "0", "seed": "7"}
    replies = [client.post(path, json={**BODIES[path], **given}) for given in (numbers, {**numbers, name: 3.0})]
    assert [reply.status_code for reply in replies] == [200, 200], replies[0].text
    refused = client.post(path, json={**BODIES[path], name: True})
    assert refused.json()["error"]["message"].startswith(f"{name} must be a valid integer")


@pytest.mark.parametrize("path", BODIES)
def test_a_late_answer_names_the_field_that_was_sent(client: httpx.Client, path: str) -> None:
    for name in ("timeout", "queue_timeout"):
        reply = client.post(path, json={**BODIES[path], name: BRIEF})
        error = reply.json()["error"]
        assert (reply.status_code, error["message"].split()[0]) == (504, name), reply.text
        assert error.get("param", name) == name


def test_a_late_answer_names_the_field_that_was_sent_over_grpc(channel: grpc.Channel) -> None:
    generate = InferenceStub(channel).Generate
    for made in (GenerateRequest(text="hi", timeout=BRIEF), GenerateRequest(text="hi", queue_timeout=BRIEF)):
        with pytest.raises(grpc.RpcError) as info:
            list(generate(made))
        assert info.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert (info.value.details() or "").startswith("timeout is" if made.HasField("timeout") else "queue_timeout is")
    request = kserve.ModelInferRequest()
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(texts(["hi"]))
    request.parameters["timeout"].int64_param = 1
    with pytest.raises(grpc.RpcError) as late:
        GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert (late.value.details() or "").startswith("parameters.timeout is 1e-06 s")


def test_the_fingerprint_is_the_models(server: HashServer) -> None:
    with openai.OpenAI(base_url=f"{server.http}/v1", api_key="none") as sdk:
        asked: dict[str, Any] = {"model": "hash", "max_tokens": 2}
        found = {sdk.chat.completions.create(messages=[{"role": "user", "content": "hi"}], **asked).system_fingerprint}
        found.add(sdk.completions.create(prompt="hi", **asked).system_fingerprint)
        for chunk in sdk.completions.create(prompt="hi", stream=True, **asked):
            found.add(chunk.system_fingerprint)
    assert found == {"fp_5eed"}


def batch(client: httpx.Client, endpoint: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch that has ended."""
    content = b"\n".join(json.dumps({"method": "POST", "url": endpoint, **line}).encode() for line in lines)
    uploaded = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)}).json()
    body = {"input_file_id": uploaded["id"], "endpoint": endpoint, "completion_window": "24h"}
    made = client.post("/v1/batches", json=body).json()
    until(lambda: client.get(f"/v1/batches/{made['id']}").json()["completed_at"] is not None)
    found: dict[str, Any] = client.get(f"/v1/batches/{made['id']}").json()
    return found


def test_a_batch_of_responses(client: httpx.Client) -> None:
    good, bad = {"input": "hi", "max_output_tokens": 2}, {"input": "hi", "tools": [{}]}
    done = batch(client, "/v1/responses", [{"custom_id": "good", "body": good}, {"custom_id": "bad", "body": bad}])
    assert done["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert (done["usage"]["input_tokens"] > 0, done["usage"]["output_tokens"]) == (True, 2)
    (answer,) = client.get(f"/v1/files/{done['output_file_id']}/content").text.splitlines()
    assert json.loads(answer)["response"]["body"]["object"] == "response"
    (error,) = client.get(f"/v1/files/{done['error_file_id']}/content").text.splitlines()
    response = json.loads(error)["response"]
    assert (response["status_code"], response["body"]["error"]["param"]) == (400, "tools[0].type")
    assert response["request_id"] == f"{done['id']}-2"


def test_a_batch_of_what_is_not_served_is_told_what_is(client: httpx.Client) -> None:
    for endpoint in ("/v1/images/edits", "/v1/messages", "/v1/moderations"):
        body = {"input_file_id": "file-x", "endpoint": endpoint, "completion_window": "24h"}
        error = client.post("/v1/batches", json=body).json()["error"]
        working = "batches take /v1/chat/completions, /v1/completions, /v1/responses, /inference/v1/generate, /v1/embeddings"
        assert error["message"] == f"endpoint {endpoint} is not supported by this server yet: {working}"
