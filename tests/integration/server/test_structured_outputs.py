"""The form that an output must have, as every client says it: what of it arrives at the engine, and what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import grpc.aio
import httpx
import openai
import pytest
from pydantic import BaseModel

from jaxserve import StructuredOutputsParams
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto import kserve_pb2 as kserve
from jaxserve.proto import vllm_engine_pb2 as vllm
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.proto.kserve_pb2_grpc import GRPCInferenceServiceStub
from jaxserve.proto.vllm_engine_pb2_grpc import VllmEngineStub
from server.kserve.tensors import texts
from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving, serving

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
OLD_TAG = {"type": "structural_tag", "structures": [{"begin": "<", "schema": {}, "end": ""}], "triggers": ["<"]}
SAY = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAY, "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": SAY, "max_tokens": 2},
}
ANYWHERE: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
    ({"structured_outputs": {"json": TEXT, "disable_any_whitespace": True}}, {"json": TEXT, "disable_any_whitespace": True}),
    ({"structured_outputs": {"json": {}, "regex": "", "choice": []}}, {"json": {}}),
    ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
    ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
    ({"structured_outputs": {"grammar": "root ::= [a]"}}, {"grammar": "root ::= [a]"}),
    (
        {"structured_outputs": {"json_object": True, "whitespace_pattern": " ?"}},
        {"json_object": True, "whitespace_pattern": " ?"},
    ),
    ({"structured_outputs": {"structural_tag": TAG}}, {"structural_tag": TAG}),
    ({"guided_json": SCHEMA, "guided_whitespace_pattern": " "}, {"json": SCHEMA, "whitespace_pattern": " "}),
    ({"guided_json": TEXT}, {"json": TEXT}),
    ({"guided_regex": "a+", "guided_decoding_backend": "xgrammar"}, {"regex": "a+"}),
    ({"guided_choice": ["a"]}, {"choice": ["a"]}),
    ({"guided_grammar": "start: /a/"}, {"grammar": "start: /a/"}),
    ({"guided_json_object": True}, {"json_object": True}),
    ({"grammar": "root ::= [a]"}, {"grammar": "root ::= [a]"}),
    ({"json_schema": SCHEMA}, {"json": SCHEMA}),
    ({"regex": "a"}, {"regex": "a"}),
    ({"ebnf": "root ::= [a]"}, {"grammar": "root ::= [a]"}),
    ({"structural_tag": json.dumps(TAG)}, {"structural_tag": json.dumps(TAG)}),
    ({"structured_outputs": {}, "grammar": "", "guided_choice": [], "guided_json": None, "json_object": False}, None),
    ({"structured_outputs": {"json": None, "json_object": False}, "regex": "", "structural_tag": {}}, None),
]
NAMED = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
FLAT = {"type": "json_schema", "name": "x", "strict": False, "schema": SCHEMA}
OF_ONE: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    *(
        (path, {"response_format": given}, wanted)
        for path in ("/v1/chat/completions", "/v1/completions")
        for given, wanted in (
            ({"type": "text"}, None),
            ({"type": "json_object"}, {"json_object": True}),
            ({"type": "json_object", "schema": SCHEMA}, {"json": SCHEMA}),
            (NAMED, {"json": SCHEMA}),
            (TAG, {"structural_tag": TAG}),
            (OLD_TAG, {"structural_tag": OLD_TAG}),
        )
    ),
    ("/v1/responses", {"text": {"format": {"type": "text"}}}, None),
    ("/v1/responses", {"text": {"format": {"type": "json_object"}}}, {"json_object": True}),
    ("/v1/responses", {"text": {"format": FLAT, "verbosity": "medium"}}, {"json": SCHEMA}),
    ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, {"json": SCHEMA}),
    ("/v1/messages", {"output_format": {"type": "json_schema", "schema": SCHEMA}}, {"json": SCHEMA}),
    ("/v1/messages", {"output_config": {"format": None, "effort": None}}, None),
]


@pytest.fixture
def engine() -> ScriptedClient:
    return ScriptedClient()


@pytest.fixture
async def servers(engine: ScriptedClient) -> AsyncIterator[Serving]:
    async with serving(engine) as running:
        yield running


def arrived(engine: ScriptedClient) -> StructuredOutputsParams | None:
    """What the one request since the last look asked for."""
    (params,) = engine.seen
    engine.seen.clear()
    form = params.structured_outputs
    assert form is None or isinstance(form, StructuredOutputsParams)
    return form


def wanted(given: dict[str, Any] | None) -> StructuredOutputsParams | None:
    return None if given is None else StructuredOutputsParams(**given)


async def test_http(engine: ScriptedClient, servers: Serving) -> None:
    everywhere = ((path, given, params) for path in BODIES for given, params in ANYWHERE)
    async with httpx.AsyncClient(base_url=servers.http, timeout=60) as client:
        for path, given, params in (*everywhere, *OF_ONE):
            for stream in (False, True):
                reply = await client.post(path, json={**BODIES[path], **given, "stream": stream})
                assert reply.status_code == 200, (path, given, reply.text)
                assert arrived(engine) == wanted(params), (path, given)


async def test_a_response_tells_the_form_that_was_asked_for(servers: Serving) -> None:
    async with httpx.AsyncClient(base_url=servers.http, timeout=60) as client:
        for given in (None, {"type": "json_object"}, FLAT):
            reply = await client.post("/v1/responses", json={"input": "hi", "text": {"format": given}})
            assert reply.json()["text"]["format"] == given or {"type": "text"}


REFUSED: list[tuple[str | None, dict[str, Any], str, str]] = [
    (None, {"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs", "must have exactly one of json, regex"),
    (None, {"structured_outputs": {"disable_any_whitespace": True}}, "structured_outputs", "must have exactly one of json"),
    (None, {"structured_outputs": 5}, "structured_outputs", ""),
    (None, {"structured_outputs": {"json": 5}}, "structured_outputs.json", "must be a JSON schema: an object, or its JSON text"),
    (None, {"structured_outputs": {"choice": ["a", 5]}}, "structured_outputs.choice[1]", "must be a valid string"),
    (None, {"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "must be a valid string"),
    (None, {"structured_outputs": {"regex": "a" * 65_537}}, "structured_outputs.regex", "must be at most 65536 bytes"),
    (
        None,
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
        "structured_outputs.whitespace_pattern",
        "must be left out with regex",
    ),
    (None, {"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "is not valid: Extra inputs are not permitted"),
    (None, {"guided_json": 5}, "guided_json", "must be a JSON schema"),
    (None, {"guided_choice": ["a"] * 10_001}, "guided_choice", "must be at most 10000 strings, got 10001"),
    (None, {"guided_regex": "a" * 65_537}, "guided_regex", "must be at most 65536 bytes, got 65537"),
    (None, {"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "must be left out with regex"),
    (None, {"grammar": "a" * 65_537}, "grammar", "must be at most 65536 bytes, got 65537"),
    (None, {"json_schema": " "}, "json_schema", "must be a text that is not empty"),
    (None, {"grammar_lazy": True}, "grammar_lazy", "is not supported by this server yet"),
    (
        None,
        {"guided_regex": "a", "structured_outputs": {"regex": "a"}},
        "guided_regex",
        "cannot be given together with structured_outputs: each says what the output looks like",
    ),
    (None, {"grammar": "a", "guided_json": {}}, "grammar", "cannot be given together with guided_json"),
    ("/v1/chat/completions", {"response_format": {"type": "xml"}}, "response_format", "'xml'"),
    ("/v1/chat/completions", {"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is required"),
    (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
        "is required",
    ),
    (
        "/v1/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"x": "y" * 600_000}}}},
        "response_format.json_schema.schema",
        "must be at most 524288 bytes",
    ),
    (
        "/v1/chat/completions",
        {"response_format": NAMED, "guided_json": {}},
        "guided_json",
        "cannot be given together with response_format",
    ),
    ("/v1/responses", {"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "is required"),
    ("/v1/responses", {"text": {"format": FLAT}, "regex": "a"}, "regex", "cannot be given together with text.format"),
    ("/v1/responses", {"response_format": {"type": "json_object"}}, "response_format", "is not supported by this server yet"),
    ("/v1/messages", {"output_format": {"type": "json_schema"}}, "output_format.schema", "is required"),
    ("/v1/messages", {"output_config": {"effort": "high"}}, "output_config.effort", "is not supported with this model"),
    (
        "/v1/messages",
        {
            "output_format": {"type": "json_schema", "schema": {}},
            "output_config": {"format": {"type": "json_schema", "schema": {}}},
        },
        "output_config.format",
        "cannot be given together with output_format",
    ),
]


async def test_http_refusals(engine: ScriptedClient, servers: Serving) -> None:
    async with httpx.AsyncClient(base_url=servers.http, timeout=60) as client:
        for only, given, param, message in REFUSED:
            for path in BODIES if only is None else (only,):
                reply = await client.post(path, json={**BODIES[path], **given})
                error = reply.json()["error"]
                assert reply.status_code == 400, (path, given)
                assert error.get("param", param) == param, (path, given, error)
                assert error["message"].startswith(f"{param} "), (path, error)
                assert message in error["message"], (path, error)
    assert engine.seen == []


class Point(BaseModel):
    """What a client parses answers into."""

    x: int
    y: int


async def test_sdks(engine: ScriptedClient, servers: Serving) -> None:
    """What they make of a pydantic model; that no answer comes of it is the scripted engine's doing."""
    async with (
        openai.AsyncOpenAI(base_url=f"{servers.http}/v1", api_key="none", max_retries=0) as oai,
        anthropic.AsyncAnthropic(base_url=servers.http, api_key="none", max_retries=0) as claude,
    ):
        for ask in (
            lambda: oai.chat.completions.parse(model="echo", messages=SAY, response_format=Point),  # type: ignore[arg-type]
            lambda: oai.responses.parse(model="echo", input="hi", text_format=Point),
            lambda: claude.messages.parse(model="echo", max_tokens=9, messages=SAY, output_format=Point),  # type: ignore[arg-type]
        ):
            with pytest.raises(ValueError, match="JSON"):
                await ask()
            form = arrived(engine)
            assert form is not None
            assert isinstance(form.json, str)
            schema = json.loads(form.json)
            assert (schema["type"], list(schema["properties"]), schema["required"]) == ("object", ["x", "y"], ["x", "y"])
            assert schema["additionalProperties"] is False


async def test_grpc(engine: ScriptedClient, servers: Serving) -> None:
    forms: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
        ({"json": TEXT, "disable_additional_properties": True}, {"json": TEXT, "disable_additional_properties": True}),
        ({"regex": "a"}, {"regex": "a"}),
        ({"choice": {"texts": ["a", "b"]}}, {"choice": ["a", "b"]}),
        ({"grammar": "start: /a/"}, {"grammar": "start: /a/"}),
        ({"json_object": True, "whitespace_pattern": " "}, {"json_object": True, "whitespace_pattern": " "}),
        ({"structural_tag": json.dumps(TAG)}, {"structural_tag": json.dumps(TAG)}),
        ({"json_object": False}, None),
        ({}, None),
    ]
    async with grpc.aio.insecure_channel(servers.grpc) as channel:
        for given, params in forms:
            request = pb.GenerateRequest(text="hi", stopping={"max_tokens": 2}, structured_outputs=given)
            assert [event async for event in InferenceStub(channel).Generate(request)]
            assert arrived(engine) == wanted(params)
        wrong = pb.GenerateRequest(text="hi", structured_outputs={"choice": {"texts": []}, "whitespace_pattern": " "})
        wrong.structured_outputs.choice.texts.append("a")
        with pytest.raises(grpc.aio.AioRpcError, match=r"structured_outputs.whitespace_pattern must be left out with choice"):
            await InferenceStub(channel).Generate(wrong).read()


async def test_vllm_grpc(engine: ScriptedClient, servers: Serving) -> None:
    constraints: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
        ({"json_schema": TEXT}, {"json": TEXT}),
        ({"regex": "a"}, {"regex": "a"}),
        ({"grammar": "root ::= [a]"}, {"grammar": "root ::= [a]"}),
        ({"structural_tag": json.dumps(TAG)}, {"structural_tag": json.dumps(TAG)}),
        ({"json_object": True}, {"json_object": True}),
        ({"choice": {"choices": ["a", "b"]}}, {"choice": ["a", "b"]}),
        ({}, None),
    ]
    async with grpc.aio.insecure_channel(servers.grpc) as channel:
        generate = VllmEngineStub(channel).Generate
        for given, params in constraints:
            assert [one async for one in generate(vllm.GenerateRequest(text="hi", sampling_params={"max_tokens": 2, **given}))]
            assert arrived(engine) == wanted(params)
        with pytest.raises(grpc.aio.AioRpcError, match=r"sampling_params.regex must be at most 65536 bytes"):
            await generate(vllm.GenerateRequest(text="hi", sampling_params={"regex": "a" * 65_537})).read()


def kserve_request(parameters: dict[str, str], sampling: dict[str, Any]) -> kserve.ModelInferRequest:
    made = kserve.ModelInferRequest()
    for name, value in {"text_input": "hi", "sampling_parameters": json.dumps({"max_tokens": 2, **sampling})}.items():
        made.inputs.add(name=name, datatype="BYTES", shape=[1])
        made.raw_input_contents.append(texts([value]))
    for name, value in parameters.items():
        made.parameters[name].string_param = value
    return made


async def test_kserve(engine: ScriptedClient, servers: Serving) -> None:
    forms: list[tuple[dict[str, str], dict[str, Any], dict[str, Any] | None]] = [
        ({"guided_json": TEXT}, {}, {"json": TEXT}),
        ({"guided_choice": '["a","b"]'}, {}, {"choice": ["a", "b"]}),
        ({"structured_outputs": '{"regex":"a"}'}, {}, {"regex": "a"}),
        ({}, {"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({}, {"guided_json": SCHEMA, "guided_whitespace_pattern": " "}, {"json": SCHEMA, "whitespace_pattern": " "}),
        ({"guided_json": ""}, {"regex": None}, None),
    ]
    wrong: list[tuple[dict[str, str], dict[str, Any], str]] = [
        ({"guided_choice": "a"}, {}, "parameters.guided_choice must be a JSON list"),
        ({"structured_outputs": "[1]"}, {}, "parameters.structured_outputs must be a JSON object"),
        ({}, {"guided_json": 5}, "sampling_parameters.guided_json must be an object, or its JSON text"),
        ({}, {"structured_outputs": {"regex": 5}}, "sampling_parameters.structured_outputs.regex must be a string"),
        ({}, {"structured_outputs": {"jsn": 5}}, "sampling_parameters.structured_outputs.jsn is no field that this server knows"),
        ({"regex": "a", "grammar": "b"}, {}, "parameters.regex cannot be given together with parameters.grammar"),
        ({"regex": "a"}, {"regex": "b"}, "parameters.regex cannot be given together with sampling_parameters.regex"),
    ]
    async with grpc.aio.insecure_channel(servers.grpc) as channel:
        infer = GRPCInferenceServiceStub(channel).ModelInfer
        for parameters, sampling, params in forms:
            await infer(kserve_request(parameters, sampling))
            assert arrived(engine) == wanted(params)
        for parameters, sampling, message in wrong:
            with pytest.raises(grpc.aio.AioRpcError) as info:
                await infer(kserve_request(parameters, sampling))
            assert (info.value.details() or "").startswith(message), info.value.details()
