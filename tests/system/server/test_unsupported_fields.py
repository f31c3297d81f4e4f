"""Fields that this server does not have, on every surface of one real server that drops some of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from jaxserve.proto import kserve_pb2 as kserve
from jaxserve.proto import vllm_engine_pb2 as vllm
from jaxserve.proto.inference_pb2 import GenerateRequest
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.proto.kserve_pb2_grpc import GRPCInferenceServiceStub
from jaxserve.proto.vllm_engine_pb2_grpc import VllmEngineStub
from server.kserve.tensors import texts
from tests.support.hash_server import HashServer, hash_server

SAY = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAY, "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": SAY, "max_tokens": 2},
}
TOOLS: dict[str, Any] = {
    "/v1/chat/completions": {"type": "function", "function": {"name": "f"}},
    "/v1/completions": {},
    "/v1/responses": {"type": "function", "name": "f", "parameters": {}, "strict": False},
    "/v1/messages": {"name": "f", "input_schema": {}},
}
WARNING, IGNORED = "x-jaxserve-warning", "x-jaxserve-ignored"
ASK = "is not supported by this server yet: ask for it in a message"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    with hash_server(
        tmp_path_factory.mktemp("hash"), {"ignore_unsupported": "tools,tool_choice,bad_words,kv_transfer_params_json"}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: HashServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def channel(server: HashServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel


def message(reply: httpx.Response) -> str:
    assert reply.status_code == 400, reply.text
    found: str = reply.json()["error"]["message"]
    return found


@pytest.mark.parametrize("path", BODIES)
def test_http(client: httpx.Client, path: str) -> None:
    body = BODIES[path]
    for field, value in {"grammar_lazy": True, "n_indent": 4, "grammar_triggers": [{"x": 1}]}.items():
        assert message(client.post(path, json={**body, field: value})).startswith(f"{field} {ASK}")
    for field in ("lora", "thinking", "lora_path"):
        assert message(client.post(path, json={**body, field: {"type": "enabled"}})).startswith(f"{field} is not supported")
    plain = client.post(path, json={**body, "grammar": "", "thinking": {"type": "disabled"}, "lora": [], "mirostat": 0})
    assert (plain.status_code, WARNING in plain.headers, IGNORED in plain.headers) == (200, False, False)
    odd = {"mirostat": 2, "mirostat_tau": 5.0, "dry_multiplier": 0.8, "xtc_probability": 0.5}
    flavoured = client.post(path, json={**body, **odd})
    assert flavoured.status_code == 200
    assert flavoured.headers[WARNING].endswith(": mirostat, dry_multiplier, xtc_probability")
    for stream in (False, True):
        dropped = client.post(path, json={**body, "bad_words": ["x"], "tools": [TOOLS[path]], "stream": stream})
        assert (dropped.status_code, set(dropped.headers[IGNORED].split(", "))) == (200, {"tools", "bad_words"})


def test_a_repeated_answer_tells_what_the_first_told(client: httpx.Client) -> None:
    body, headers = {**BODIES["/v1/completions"], "tools": [{}]}, {"idempotency-key": "one"}
    first, second = (client.post("/v1/completions", json=body, headers=headers) for _ in range(2))
    assert (second.headers["idempotency-replayed"], second.content) == ("true", first.content)
    assert [reply.headers[IGNORED] for reply in (first, second)] == ["tools", "tools"]


def kserve_request(parameters: dict[str, str], sampling: dict[str, Any]) -> kserve.ModelInferRequest:
    made = kserve.ModelInferRequest()
    for name, value in {"text_input": "hi", "sampling_parameters": json.dumps({"max_tokens": 2, **sampling})}.items():
        made.inputs.add(name=name, datatype="BYTES", shape=[1])
        made.raw_input_contents.append(texts([value]))
    for name, value in parameters.items():
        made.parameters[name].string_param = value
    return made


def test_kserve(channel: grpc.Channel) -> None:
    infer = GRPCInferenceServiceStub(channel).ModelInfer
    for parameters, sampling, path in (
        ({"verbosity": "low"}, {}, "parameters.verbosity"),
        ({}, {"grammar_triggers": [{"type": "object"}], "zzz": 1}, "sampling_parameters.grammar_triggers"),
    ):
        with pytest.raises(grpc.RpcError) as info:
            infer(kserve_request(parameters, sampling))
        assert (info.value.code(), (info.value.details() or "")[: len(path)]) == (grpc.StatusCode.INVALID_ARGUMENT, path)
        assert (info.value.details() or "").startswith(f"{path} {ASK}")
    _, call = infer.with_call(kserve_request({"tools": "x"}, {"xtc_probability": 0.5, "bad_words": ["a"], "lora": ""}))
    metadata = dict(call.trailing_metadata())
    assert (metadata[WARNING].endswith(": xtc_probability"), metadata[IGNORED]) == (True, "tools, bad_words")


def test_vllm(channel: grpc.Channel) -> None:
    generate = VllmEngineStub(channel).Generate
    with pytest.raises(grpc.RpcError) as info:
        list(generate(vllm.GenerateRequest(text="hi", sampling_params={"max_tokens": 2}, data_parallel_rank=1)))
    assert (info.value.details() or "").startswith("data_parallel_rank is not supported by this server yet")
    call = generate(vllm.GenerateRequest(text="hi", sampling_params={"max_tokens": 2}, kv_transfer_params_json="{}"))
    assert len(list(call)) == 1
    assert dict(call.trailing_metadata())[IGNORED] == "kv_transfer_params_json"


def test_fields_of_a_later_version_of_our_own_service(channel: grpc.Channel) -> None:
    made = GenerateRequest.FromString(GenerateRequest(text="hi").SerializeToString() + b"\xfa\x06\x01x")  # field 111
    with pytest.raises(grpc.RpcError) as info:
        list(InferenceStub(channel).Generate(made))
    assert (info.value.details() or "").startswith(
        "111 of jaxserve.v1.GenerateRequest is not supported by this server yet: leave it out"
    )
