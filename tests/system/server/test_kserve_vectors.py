"""Vectors and scores over KServe v2: HTTP's JSON and bytes, Triton's generate, gRPC alone and in a stream."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from jaxserve.proto import kserve_pb2 as pb
from jaxserve.proto.kserve_pb2_grpc import GRPCInferenceServiceStub
from tests.golden.reading import DATA
from tests.support.serve_process import Process, Served

POOLED = DATA.parent / "pooled"
MODEL = "/v2/models/bert-mean"
GOLDEN = json.loads((POOLED / "bert-mean" / "pooled.json").read_text())
TEXTS, WANTED = GOLDEN["texts"], np.array(GOLDEN["embeddings"]["plain"])


@pytest.fixture(scope="module")
def server(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    flags = ("--dtype", "float32", "--max-num-seqs", "4", "--max-num-batched-tokens", "256", "--max-model-len", "256")
    yield from served(tmp_path_factory.mktemp("server"), "--model", str(POOLED / "bert-mean"), *flags)


@pytest.fixture(scope="module")
def http(server: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, timeout=120) as one:
        yield one


def tensor(texts: list[str], name: str = "text_input", **fields: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [len(texts)], "data": texts, **fields}


def infer(http: httpx.Client, *tensors: dict[str, Any], model: str = MODEL, **fields: Any) -> httpx.Response:
    return http.post(f"{model}/infer", json={"inputs": list(tensors), **fields})


def request(texts: list[str], **parameters: Any) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(id="mine")
    made.inputs.add(name="text_input", datatype="BYTES", shape=[len(texts), 1])
    encoded = [text.encode() for text in texts]
    made.raw_input_contents.append(b"".join(struct.pack("<I", len(text)) + text for text in encoded))
    for name, value in parameters.items():
        kind = {str: "string_param", int: "int64_param", bool: "bool_param"}[type(value)]
        setattr(made.parameters[name], kind, value)
    return made


def vectors_of(reply: pb.ModelInferResponse) -> np.ndarray:
    (output,), (raw,) = reply.outputs, reply.raw_output_contents
    assert (output.name, output.datatype) == ("embedding", "FP32")
    return np.frombuffer(raw, "<f4").reshape(list(output.shape))


def test_a_row_a_text(http: httpx.Client) -> None:
    reply = infer(http, tensor(TEXTS), id="mine", outputs=[{"name": "num_input_tokens"}, {"name": "embedding"}])
    assert reply.status_code == 200, reply.text
    told = reply.json()
    assert (told["id"], told["model_name"]) == ("mine", "bert-mean")
    embedding, tokens = told["outputs"]
    assert (embedding["name"], embedding["datatype"], embedding["shape"]) == ("embedding", "FP32", list(WANTED.shape))
    np.testing.assert_allclose(np.reshape(embedding["data"], WANTED.shape), WANTED, atol=1e-4)
    assert (tokens["name"], tokens["shape"]) == ("num_input_tokens", [1])
    assert tokens["data"][0] > len(TEXTS)


def test_rows_as_bytes(http: httpx.Client) -> None:
    reply = infer(http, tensor(TEXTS[:2]), parameters={"binary_data_output": True})
    size = int(reply.headers["Inference-Header-Content-Length"])
    np.testing.assert_allclose(np.frombuffer(reply.content[size:], "<f4").reshape(2, -1), WANTED[:2], atol=1e-4)


def test_tritons_generate(http: httpx.Client) -> None:
    for given, wanted in ((TEXTS[1], WANTED[1:2]), (TEXTS[:3], WANTED[:3])):
        reply = http.post(f"{MODEL}/generate", json={"text_input": given})
        assert reply.status_code == 200, reply.text
        np.testing.assert_allclose(reply.json()["embedding"], wanted, atol=1e-4)


def test_grpc_alone_and_in_a_stream(server: Process) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        reply = stub.ModelInfer(request(TEXTS), timeout=120)
        np.testing.assert_allclose(vectors_of(reply), WANTED, atol=1e-4)
        (streamed, refused) = stub.ModelStreamInfer(iter([request(TEXTS), request(TEXTS, dimensions=8)]), timeout=120)
        if streamed.error_message:
            streamed, refused = refused, streamed
        np.testing.assert_allclose(vectors_of(streamed.infer_response), WANTED, atol=1e-4)
        assert streamed.infer_response.parameters["triton_final_response"].bool_param
        assert "dimensions" in refused.error_message
        cut = stub.ModelInfer(request([TEXTS[3]], truncate_prompt_tokens=5, use_activation=False), timeout=120)
        assert np.abs(vectors_of(cut) - vectors_of(stub.ModelInfer(request([TEXTS[3]], use_activation=False)))).max() > 1e-3


def test_the_tensors_are_described(http: httpx.Client) -> None:
    told = http.get(MODEL).json()
    assert told["inputs"] == [
        {"name": "text_input", "datatype": "BYTES", "shape": [-1]},
        {"name": "text_pair", "datatype": "BYTES", "shape": [-1]},
    ]
    assert told["outputs"] == [
        {"name": "embedding", "datatype": "FP32", "shape": [-1, -1]},
        {"name": "num_input_tokens", "datatype": "UINT32", "shape": [-1]},
    ]
    config = http.get(f"{MODEL}/config").json()
    assert [(one["name"], one["dims"], one["optional"]) for one in config["input"]] == [
        ("text_input", [-1], False),
        ("text_pair", [-1], True),
    ]
    assert config["model_transaction_policy"]["decoupled"] is False


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"inputs": []}, "text_input is required"),
        ({"inputs": [tensor([])]}, "text_input must not be empty"),
        ({"inputs": [tensor(["a", ""])]}, "text_input must not be empty"),
        ({"inputs": [tensor(["a", "b"], shape=[1])]}, "text_input must have one element in data, got 2"),
        ({"inputs": [tensor(["a"], shape=[2])]}, "text_input must have 2 elements, as its shape says, in data, got 1"),
        ({"inputs": [tensor(["a", "b"], shape=[1, 2])]}, r"text_input must be of shape [2], as it has elements, got [1, 2]"),
        ({"inputs": [tensor(["a"] * 1025)]}, "text_input must be at most 1024 values, got 1025"),
        (
            {"inputs": [tensor(["a"]), tensor(["b"] * 2, "text_pair")]},
            "text_pair must have as many texts as text_input, 1, got 2",
        ),
        ({"inputs": [tensor(["a"]), {"name": "stream", "datatype": "BOOL", "shape": [1], "data": [True]}]}, "no input 'stream'"),
        ({"inputs": [tensor(["a"])], "outputs": [{"name": "text_output"}]}, "there is no output 'text_output' of this task"),
        ({"inputs": [tensor(["a"])], "parameters": {"temperature": 1.0}}, "temperature is no parameter of a model that pools"),
        ({"inputs": [tensor(["a"])], "parameters": {"task": "token_embed"}}, "task must be one of embed, classify"),
        ({"inputs": [tensor(["a"])], "parameters": {"dimensions": 0}}, "parameters.dimensions must be an integer"),
        ({"inputs": [tensor(["a"])], "parameters": {"prompt_name": "song"}}, "parameters.prompt_name 'song' is not declared"),
        (
            {"inputs": [tensor(["a"])], "parameters": {"truncate_prompt_tokens": "5"}},
            "truncate_prompt_tokens must be an integer, got '5'",
        ),
        (
            {"inputs": [tensor(["a"])], "parameters": {"truncate_prompt_tokens": True}},
            "truncate_prompt_tokens must be an integer",
        ),
        (
            {"inputs": [tensor(["a"])], "parameters": {"truncate_prompt_tokens": 0}},
            "truncate_prompt_tokens must be -1 or between",
        ),
        ({"inputs": [tensor(["tea " * 400])]}, "text_input"),
    ],
)
def test_bad_input_is_named(http: httpx.Client, sent: dict[str, Any], words: str) -> None:
    reply = http.post(f"{MODEL}/infer", json=sent)
    assert reply.status_code == 400, reply.text
    assert words in reply.json()["error"]


def test_pairs_are_scored(served: Served, tmp_path_factory: pytest.TempPathFactory) -> None:
    golden = json.loads((POOLED / "bert-cross" / "pooled.json").read_text())
    firsts, seconds = (list(texts) for texts in zip(*golden["pairs"], strict=True))
    flags = ("--dtype", "float32", "--max-num-seqs", "4", "--max-num-batched-tokens", "256", "--max-model-len", "256")
    for process in served(tmp_path_factory.mktemp("cross"), "--model", str(POOLED / "bert-cross"), *flags):
        with httpx.Client(base_url=process.http, timeout=120) as http:
            reply = infer(http, tensor(firsts), tensor(seconds, "text_pair"), model="/v2/models/bert-cross")
            assert reply.status_code == 200, reply.text
            (scores,) = reply.json()["outputs"]
            assert (scores["name"], scores["shape"]) == ("scores", [len(firsts), 1])
            np.testing.assert_allclose(scores["data"], golden["scores"], atol=1e-4)
