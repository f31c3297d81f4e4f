"""What the API's document says of bodies beyond their types: this model's bounds, this server's defaults, numbers as texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any

from jaxserve.engine.client import EngineClient
from jaxserve.sampling.params import MAX_INT32, MAX_LOGIT_BIAS, SamplingParams
from server.http.numbers import NUMERAL, numeral, up_to

# What fields that are left out stand for; sampling parameters know theirs, and the model may have others.
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        **{field.name: field.default for field in fields(SamplingParams) if field.default not in (None, MISSING, ())},
        "add_generation_prompt": True,
        "add_special_tokens": True,
        "continue_final_message": False,
        "echo": False,
        "return_token_ids": False,
        "return_token_strs": False,
        "return_tokens_as_token_ids": False,
        "stream": False,
    }
)
_OF_SHAPE: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "ChatRequest": {"logprobs": False},
        "CompletionRequest": {"max_tokens": 16},
        "GenerateRequest": {"output_mode": "tokens"},
        "GenerateSamplingParams": {**_DEFAULTS, "detokenize": True},  # whatever the model recommends
    }
)
_LENGTHS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})


def fit(document: dict[str, Any], client: EngineClient) -> None:
    """Write to the bodies of an OpenAPI document what is so on this server."""
    model, schemas = client.model, document["components"]["schemas"]
    defaults = {**_DEFAULTS, **model.sampling.given(), "max_tokens": client.bounds.default_max_tokens}
    for name in sorted(_bodies(document, schemas)):
        own = _OF_SHAPE.get(name, {})
        for field, property_ in schemas[name].get("properties", {}).items():
            if field in _LENGTHS:
                property_["maximum"] = model.max_model_len
            elif field == "n":
                property_["maximum"] = min(property_["maximum"], client.bounds.sequences)
            elif field == "truncate_prompt_tokens":
                property_["maximum"] = model.max_model_len
                property_["not"] = {"enum": [0, "0"]}
            elif field == "logit_bias":
                _fit_bias(property_, model.vocab_size)
            default = own.get(field, defaults.get(field))
            if default is not None and field not in schemas[name].get("required", ()):
                property_["default"] = default
            _take_texts(property_)
        for node in _nodes(schemas[name]):
            if node.get("type") == "integer" and node.get("maximum") == MAX_INT32:
                node["maximum"] = model.vocab_size - 1


def _bodies(document: Mapping[str, Any], schemas: Mapping[str, Any]) -> set[str]:
    waiting = [
        node["$ref"]
        for path in document["paths"].values()
        for operation in path.values()
        for node in _nodes(operation.get("requestBody", {}))
        if "$ref" in node
    ]
    found: set[str] = set()
    while waiting:
        name = waiting.pop().rpartition("/")[2]
        if name not in found:
            found.add(name)
            waiting += [node["$ref"] for node in _nodes(schemas[name]) if "$ref" in node]
    return found


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nodes(item)


def _fit_bias(property_: dict[str, Any], vocab_size: int) -> None:
    for node in _nodes(property_):
        if "propertyNames" in node:
            node["propertyNames"] = {"pattern": up_to(vocab_size - 1)}
            node["additionalProperties"] = {"type": "number", "minimum": -100, "maximum": 100}
            node["maxProperties"] = MAX_LOGIT_BIAS


def _take_texts(property_: dict[str, Any]) -> None:
    """Say which texts stand for the property's number, if it is one."""
    for kinds in (property_.get("anyOf"), [property_]):
        for kind in kinds or ():
            if kind.pop(NUMERAL, False):
                text = numeral(kind["type"], {**property_, **kind})
                if kind is property_:
                    number = {"type": property_.pop("type"), **{key: property_.pop(key) for key in _LIMITS if key in property_}}
                    property_["anyOf"] = [number, text]
                else:
                    property_["anyOf"].insert(-1, text)
                return


_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
