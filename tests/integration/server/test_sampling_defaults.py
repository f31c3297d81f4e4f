"""A checkpoint's generation_config.json says how to sample where a request does not, whichever way the request comes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import grpc.aio
import httpx
import pytest

from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto import kserve_pb2 as kserve
from jaxserve.proto import vllm_engine_pb2 as vllm
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.proto.kserve_pb2_grpc import GRPCInferenceServiceStub
from jaxserve.proto.vllm_engine_pb2_grpc import VllmEngineStub
from jaxserve.sampling.defaults import SamplingDefaults
from jaxserve.sampling.params import SamplingParams
from tests.support.scripted import ScriptedClient

DEFAULTS = SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95, min_p=0.05, repetition_penalty=1.05)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 8},
}


@pytest.fixture(autouse=True)
def recommended(engine: ScriptedClient) -> None:
    engine.model = replace(engine.model, sampling=DEFAULTS)


def seen(params: SamplingParams) -> SamplingDefaults:
    return SamplingDefaults(**{name: getattr(params, name) for name in DEFAULTS.given()})


@pytest.mark.parametrize("path", BODIES)
async def test_http(http: httpx.AsyncClient, engine: ScriptedClient, path: str) -> None:
    for said in ({}, {"temperature": 0.0, "top_p": 1.0}):
        reply = await http.post(path, json={**BODIES[path], **said})
        assert reply.status_code == 200
    silent, explicit = engine.seen
    assert seen(silent) == DEFAULTS
    assert seen(explicit) == replace(DEFAULTS, temperature=0.0, top_p=1.0)


async def test_grpc(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    stub = InferenceStub(channel)
    both: list[dict[str, Any]] = [{}, {"top_k": 0}]
    for said in both:
        assert [event async for event in stub.Generate(pb.GenerateRequest(text="hi", sampling=pb.Sampling(**said)))]
    silent, explicit = engine.seen
    assert seen(silent) == DEFAULTS
    assert seen(explicit) == replace(DEFAULTS, top_k=0)


async def test_grpc_of_vllm_where_zero_is_nothing_said(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    tokens = vllm.TokenizedInput(input_ids=b"hi")
    both: list[dict[str, Any]] = [{}, {"temperature": 0.0, "top_p": 0.5}]
    for said in both:
        request = vllm.GenerateRequest(tokenized=tokens, sampling_params=vllm.SamplingParams(**said))
        assert [reply async for reply in VllmEngineStub(channel).Generate(request)]
    silent, explicit = engine.seen
    assert seen(silent) == DEFAULTS
    assert seen(explicit) == replace(DEFAULTS, temperature=0.0, top_p=0.5)


async def test_grpc_of_kserve(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    stub = GRPCInferenceServiceStub(channel)
    for said in ({}, {"min_p": 0.0}):
        request = kserve.ModelInferRequest(model_name="echo")
        for name, text in {"text_input": "hi", "sampling_parameters": json.dumps(said)}.items():
            tensor = request.inputs.add(name=name, datatype="BYTES", shape=[1])
            tensor.contents.bytes_contents.append(text.encode())
        await stub.ModelInfer(request)
    silent, explicit = engine.seen
    assert seen(silent) == DEFAULTS
    assert seen(explicit) == replace(DEFAULTS, min_p=0.0)
