"""StructuredOutputsParams: what is refused and how, that it is cheap to hash and compare, and how it travels."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, cast

import pytest

from jaxserve import SamplingParams, StructuredOutputsParams
from jaxserve.engine.remote.codec import encode
from jaxserve.engine.remote.messages import Add, decode_from_frontend
from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.structured import MAX_BYTES, MAX_CHOICES
from jaxserve.scheduler.request import EngineRequest

EVERY: list[dict[str, Any]] = [
    {"json": {"type": "object", "properties": {"b": {"const": "é"}, "a": True}}},
    {"regex": "a+"},
    {"choice": ["a", ""]},
    {"grammar": "start: /a/"},
    {"json_object": True},
    {"structural_tag": {"type": "structural_tag", "format": {"type": "any_text"}}},
]
KINDS = "exactly one of json, regex, choice, grammar, json_object, structural_tag"


@pytest.mark.parametrize("given", EVERY)
def test_each_kind_is_hashed_compared_and_sent(given: dict[str, Any]) -> None:
    params = StructuredOutputsParams(**given)
    assert (params.kind,) == tuple(given)
    assert params.param == f"structured_outputs.{params.kind}"
    assert params == StructuredOutputsParams(**given)
    assert hash(params) == hash(pickle.loads(pickle.dumps(params)))
    assert params != StructuredOutputsParams(regex="b")
    sampling = SamplingParams(structured_outputs=params, stop=("x",))
    sent = EngineRequest("a", (1,), sampling, 5, 1, frozenset({2}), b"", 0.0)
    received = decode_from_frontend(encode(Add.of([sent])))
    assert isinstance(received, Add)
    assert received.requests[0].params == replace(sampling, stop=())


def test_a_schema_keeps_its_order_and_becomes_text() -> None:
    params = StructuredOutputsParams(json={"b": 1, "a": "é"}, disable_any_whitespace=cast(bool, None))
    assert params.json == '{"b":1,"a":"é"}'
    assert params.disable_any_whitespace is False
    assert SamplingParams().structured_outputs is None


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({}, "", KINDS),
        ({"json_object": False}, "", KINDS),
        ({"json": "{}", "regex": "a"}, "", f"{KINDS}, got json and regex"),
        ({"json": 5}, "json", "an object, or its JSON text"),
        ({"json": []}, "json", "an object, or its JSON text"),
        ({"json": {"a": {1}}}, "json", "JSON: Object of type set is not JSON serializable"),
        ({"json": {"a": float("nan")}}, "json", "JSON: Out of range float values"),
        ({"json": " "}, "json", "a text that is not empty"),
        ({"json": "x" * (MAX_BYTES["json"] + 1)}, "json", f"at most {MAX_BYTES['json']} bytes, got {MAX_BYTES['json'] + 1}"),
        ({"regex": 5}, "regex", "a string"),
        ({"regex": "é" * 32_769}, "regex", "at most 65536 bytes, got 65538"),
        ({"regex": "\ud800"}, "regex", "half of a surrogate pair at character 0"),
        ({"choice": "ab"}, "choice", "a list of strings"),
        ({"choice": ["a", 5]}, "choice", "a list of strings"),
        ({"choice": []}, "choice", "a list that is not empty"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "choice", f"at most {MAX_CHOICES} strings, got {MAX_CHOICES + 1}"),
        ({"choice": ["a" * 300_000]}, "choice", "at most 262144 bytes, got 300000"),
        ({"grammar": ""}, "grammar", "a text that is not empty"),
        ({"grammar": "a" * 65_537}, "grammar", "at most 65536 bytes, got 65537"),
        ({"json_object": 1}, "json_object", "true or false"),
        ({"structural_tag": 5}, "structural_tag", "an object, or its JSON text"),
        ({"json_object": True, "whitespace_pattern": 5}, "whitespace_pattern", "a string"),
        ({"json_object": True, "whitespace_pattern": " " * 257}, "whitespace_pattern", "at most 256 bytes, got 257"),
        ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern", "left out with regex: it is about JSON"),
        ({"choice": ["a"], "disable_any_whitespace": True}, "disable_any_whitespace", "left out with choice"),
        (
            {"json_object": True, "whitespace_pattern": " ", "disable_any_whitespace": True},
            "whitespace_pattern",
            "left out with disable_any_whitespace",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_limit(given: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as info:
        StructuredOutputsParams(**given)
    name = f"structured_outputs.{param}" if param else "structured_outputs"
    assert info.value.param == name
    assert info.value.message.startswith(name)
    assert message in info.value.message


def test_sampling_params_take_nothing_else() -> None:
    with pytest.raises(
        InvalidRequestError, match="structured_outputs must be a StructuredOutputsParams, a ResponseParams or null"
    ):
        SamplingParams(structured_outputs=cast(Any, {"regex": "a"}))
