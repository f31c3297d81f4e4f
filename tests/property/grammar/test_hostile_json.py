"""Whatever JSON a client sends as a form of output, a tool or a choice of tools is refused by name, or compiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits
from pydantic import BaseModel, ValidationError

from jaxserve.chat_parsing import find_template, read_tools, resolve_tool_choice
from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.compile import compile_grammar
from jaxserve.grammar.response import response_source
from jaxserve.grammar.source import grammar_source
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.untrusted import check_json
from server.http.failures import from_validation
from server.http.messages.protocol import MessagesRequest
from server.http.protocol import ChatRequest
from server.http.responses.protocol import ResponsesRequest
from tests.support.grammars import vocabulary

# Those of a grammar that cannot be compiled in moments are refused here: what they take is bounded elsewhere.
LIMITS = LLParserLimits(max_items_in_row=500, initial_lexer_fuel=20_000, step_lexer_fuel=20_000, max_lexer_states=5000)

NUMBERS = st.sampled_from(
    [0, 1, -1, 2.5, 2**53, 2**63, -(2**64), 10**400, -(10**400), 1e308, "1e400", "-1e400", "NaN", "9" * 4400]
)
NAMES = st.sampled_from(["a", "", "\ud800", "\x00", "\x7f", "a/b~", "x" * 300, "$ref", "type", "$defs", "💥"]) | st.text(
    max_size=3
)
REFERENCES = st.sampled_from(
    ["#", "#/", "#/$defs/a", "#/%24defs/%61", "#/allOf/" + "9" * 5000, "#/anyOf/0", "#/properties/a", "#/%", "#/\ud800", "other"]
)
PATTERNS = st.sampled_from(["a{9999}", "(a{999}){999}", "[", "(?=a)", "^a\x7f$", "\ud800", ".*a.{5}b", "a{999999999}" * 30])
KINDS = st.sampled_from(["object", "array", "string", "integer", "number", "null", "boolean", "what", ["string", "null"], 5, []])


def schema(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists, maps = st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": KINDS,
            "$ref": REFERENCES | inner,
            **dict.fromkeys(("properties", "patternProperties", "$defs"), maps),
            **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems", "enum"), lists),
            **dict.fromkeys(("items", "additionalProperties", "const", "not"), inner),
            **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum", "multipleOf"), NUMBERS),
            "required": st.lists(NAMES, max_size=3) | inner,
            "pattern": PATTERNS,
        },
    )


JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | NAMES | REFERENCES,
    lambda inner: schema(inner) | st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
FORMATS = st.recursive(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["any_text", "const_string", "json_schema", "regex"])},
        optional={"value": NAMES, "json_schema": JSON, "pattern": PATTERNS},
    )
    | JSON,
    lambda inner: st.fixed_dictionaries(
        {"type": st.sampled_from(["sequence", "or", "tag", "triggered_tags", "tags_with_separator"])},
        optional={
            **dict.fromkeys(("elements", "tags"), st.lists(inner, max_size=3)),
            **dict.fromkeys(("begin", "separator"), NAMES),
            "end": NAMES | st.lists(NAMES, max_size=3),
            "content": inner,
            "triggers": st.lists(NAMES, max_size=2),
        },
    ),
    max_leaves=6,
)
TAGS = st.builds(lambda format: {"type": "structural_tag", "format": format}, FORMATS)
DEEP = st.builds(
    lambda depth, pair: pair[0] * depth + pair[1] * depth, st.integers(1, 1500), st.sampled_from([("[", "]"), ('{"a":', "}")])
)


def text_of(value: Any) -> str:
    """JSON in which numbers that are none stand as such."""
    text = _dumps(value)
    for word in ("1e400", "-1e400", "NaN", "9" * 4400):
        text = text.replace(f'"{word}"', word)
    return text


def _dumps(value: Any) -> str:
    return json.dumps(value)


TEXTS = (
    st.builds(text_of, JSON)
    | DEEP
    | st.builds(lambda value, deep: text_of({"items": value})[:-1] + f', "const": {deep}}}', JSON, DEEP)
)
bounded = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def refused_or_done(work: Callable[[], object]) -> None:
    refusal = None
    try:
        work()
    except InvalidRequestError as error:
        refusal = error
    if refusal is not None:  # it can be sent
        assert len(refusal.message.encode()) < 5000
        assert refusal.param is None or refusal.param.encode()


def compiled(**kind: Any) -> None:
    params = StructuredOutputsParams(**kind)
    compile_grammar(grammar_source(params, vocabulary().special), vocabulary().tokens, params.param, LIMITS)


@bounded
@given(TEXTS)
def test_schemas(text: str) -> None:
    refused_or_done(lambda: compiled(json=text))


@bounded
@given(st.builds(text_of, TAGS))
def test_structural_tags(text: str) -> None:
    refused_or_done(lambda: compiled(structural_tag=text))


@settings(bounded, max_examples=40)
@given(st.sampled_from(["regex", "grammar"]), PATTERNS | NAMES | REFERENCES)
def test_patterns_and_grammars(kind: str, text: str) -> None:
    refused_or_done(lambda: compiled(**{kind: text}))
    refused_or_done(lambda: compiled(choice=[text, "a"]))


@settings(bounded, max_examples=40)
@given(TEXTS, st.booleans())
def test_parameters_of_tools(text: str, required: bool) -> None:
    template = find_template("", tool_call_parser="hermes")
    assert template is not None
    tools = f'[{{"name": "f", "parameters": {text}}}]'
    params = ResponseParams(template=json.dumps(template.spec), thinking="none", tools=tools, required=required)
    refused_or_done(lambda: response_source(params, vocabulary()))


MESSAGES = '"messages": [{"role": "user", "content": "x"}], "max_tokens": 5'
FIELDS: list[tuple[type[BaseModel], str]] = [
    (ChatRequest, f'{{{MESSAGES}, "response_format": {{"type": "json_schema", "json_schema": {{"schema": %s}}}}}}'),
    (ChatRequest, f'{{{MESSAGES}, "tools": [{{"type": "function", "function": {{"name": "f", "parameters": %s}}}}]}}'),
    (ChatRequest, f'{{{MESSAGES}, "structured_outputs": {{"choice": %s}}}}'),
    (ChatRequest, f'{{{MESSAGES}, "tool_choice": %s}}'),
    (MessagesRequest, f'{{{MESSAGES}, "tools": [{{"name": "f", "input_schema": %s}}], "context_management": %s}}'),
    (ResponsesRequest, '{"input": "x", "tools": [%s], "tool_choice": %s}'),
]


@pytest.mark.parametrize(("kind", "frame"), FIELDS)
@settings(bounded, max_examples=20)
@given(TEXTS)
def test_bodies(kind: type[BaseModel], frame: str, text: str) -> None:
    """As the server reads them, up to the engine."""
    body = frame.replace("%s", text).encode()

    def read() -> None:
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return  # named by the server's reader
        check_json(value, body)
        try:
            asked: Any = kind.model_validate(value)
        except ValidationError as error:
            raise from_validation(
                [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)], value
            ) from error
        asked.form()
        if hasattr(asked, "asked_tools"):
            tools = asked.asked_tools()
            resolve_tool_choice(read_tools(tools.tools), tools.choice)

    refused_or_done(read)
