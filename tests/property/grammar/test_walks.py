"""Random walks through what a grammar allows: every one that comes to an end is a right answer, and none is led astray."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.grammars import accepts, matcher, vocabulary, walk

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "maxItems": 3},
        "born": {"type": "string", "format": "date"},
        "friend": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": {"type": "boolean"},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": PERSON,
    "numbers": {"type": "array", "items": {"type": "number", "multipleOf": 0.5, "minimum": -3}, "minItems": 2, "maxItems": 6},
    "map": {"type": "object", "patternProperties": {"^[a-f]{2}$": {"type": "integer"}}, "additionalProperties": {"type": "null"}},
    "tagged": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": kind}, "value": value}, "required": ["kind", "value"]}
            for kind, value in (("text", {"type": "string"}), ("list", {"type": "array", "items": {"$ref": "#"}}))
        ]
    },
    "moment": {"type": "string", "format": "date-time"},
    "anything": {"type": "object"},
}


@pytest.mark.parametrize("name", SCHEMAS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_json_that_ends_is_valid(name: str, seed: int) -> None:
    text = walk(matcher(json=SCHEMAS[name]), seed, 60)
    assert text is not None
    checker = jsonschema.Draft202012Validator(SCHEMAS[name], format_checker=jsonschema.FormatChecker())
    checker.validate(json.loads(text))


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_text_that_ends_matches_its_regex(seed: int) -> None:
    pattern = "(GET|POST) /[a-z]{1,8}(/[0-9]+)?( HTTP/1\\.[01])?"
    text = walk(matcher(regex=pattern), seed, 20)
    assert text is not None
    assert re.fullmatch(pattern, text)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abé ", max_size=3), inner, max_size=3),
    max_leaves=8,
)


def schema_of(value: Any) -> dict[str, Any]:
    """A schema that the value satisfies, and says much of it."""
    if isinstance(value, dict):
        properties = {name: schema_of(inner) for name, inner in value.items()}
        return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}
    if isinstance(value, list):
        return {"type": "array", "prefixItems": [schema_of(inner) for inner in value], "items": False, "minItems": len(value)}
    if isinstance(value, str):
        return {"type": "string", "minLength": len(value), "maxLength": len(value)}
    return {"const": value}


@given(value=VALUES, indent=st.sampled_from([None, 0, 2, 4]))
@settings(max_examples=150, deadline=None)
def test_an_answer_is_accepted_however_it_is_laid_out(value: Any, indent: int | None) -> None:
    assert accepts(matcher(json=json.dumps(schema_of(value))), json.dumps(value, ensure_ascii=False, indent=indent))


@given(name=st.sampled_from(sorted(SCHEMAS)), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_forced_tokens_are_the_only_ones_allowed(name: str, seed: int) -> None:
    text = walk(matcher(json=SCHEMAS[name], disable_any_whitespace=True), seed, 30)
    assert text is not None
    one = matcher(json=SCHEMAS[name], disable_any_whitespace=True)
    for token in vocabulary().tokens.tokenize_str(text):
        forced = one.compute_ff_tokens()
        mask = one.compute_bitmask()
        allowed = [i for i in range(8 * len(mask)) if mask[i // 8] >> i % 8 & 1]
        assert not forced or allowed == forced[:1]
        if not one.consume_token(token):
            return  # another way to write the same text than the one that is forced
