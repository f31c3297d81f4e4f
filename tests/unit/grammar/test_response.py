"""Grammars of whole responses: what walks through them say is read as the calls, the content and the thinking asked for."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest

from jaxserve.chat_parsing import ChatParser, Message, ResponseTemplate, ToolCallFailed, collect, find_template, read_tools
from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.grammars import Grammars
from jaxserve.grammar.matching import GrammarConstraint
from jaxserve.grammar.vocabulary import Vocabulary
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.types import MASK_BITS
from tests.unit.chat_parsing.vocabularies import PLAIN, SPECIAL
from tests.unit.chat_parsing.vocabularies import Vocabulary as Words

VOCABULARIES = pytest.mark.parametrize("words", [PLAIN, SPECIAL], ids=["plain", "special"])
ORDER = {
    "type": "object",
    "properties": {"order": {"type": "integer"}, "name": {"enum": ["a", "bc"]}},
    "required": ["order", "name"],
    "additionalProperties": False,
}
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TOOLS = [{"name": "get_weather", "parameters": WEATHER}, {"name": "now", "parameters": {}}]
TIGHT = {**WEATHER, "additionalProperties": False}
LONGEST = 500


@cache
def family(name: str, reasoning: str = "qwen3") -> ResponseTemplate:
    template = find_template("", tool_call_parser=name, reasoning_parser="openai_gptoss" if name == "openai" else reasoning)
    assert template is not None
    return template


def tools_of(*tools: dict[str, Any], **more: Any) -> str:
    return json.dumps([{"path": f"tools[{place}].function.parameters", **tool, **more} for place, tool in enumerate(tools)])


def grammars(words: Words) -> Grammars:
    return Grammars(words.guidance.vocab_size, lambda: Vocabulary(words.guidance, words.special, words.end_tokens))


def constraint(words: Words, template: ResponseTemplate, **form: Any) -> GrammarConstraint:
    return grammars(words).constraints(ResponseParams(template=json.dumps(template.spec), **form))()


def allowed(one: GrammarConstraint, words: Words) -> list[int]:
    """By the engine's own masks."""
    size = -(-words.guidance.vocab_size // MASK_BITS)
    masks = np.full((1, size), -1, np.int32)
    masker = Grammars(words.guidance.vocab_size, lambda: Vocabulary(words.guidance, {}, ())).masker
    assert not masker.fill([(0, one)], masks)
    bits = np.unpackbits(masks.view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def say(one: GrammarConstraint, words: Words, text: str) -> bool:
    """Whether it takes all of the text."""
    tokens = words.encode(text)
    for token in tokens:
        if not one.matcher.validate_tokens([token]):
            return False
        one.accept(token)
    return True


def is_whole(one: GrammarConstraint) -> bool:
    return one.matcher.is_accepting()


def hints(template: ResponseTemplate) -> Iterator[str]:
    yield from ['"', "}", '",', "1", "a", "bc", ")", ",", "\n", '{"order": ', '"name": "', "<tool_call>", "</tool_call>", "{"]
    if template.reasoning is not None:
        yield from (template.reasoning.begin, template.reasoning.end)


def walk(one: GrammarConstraint, words: Words, chance: random.Random, leading: list[str]) -> tuple[list[int], bool]:
    """A random response, and whether it came to an end; what is imposed or forced is what masks allow."""
    taken: list[int] = []
    while len(taken) < LONGEST:
        if one.matcher.is_stopped() or (one.matcher.is_accepting() and not one.imposed and chance.random() < 0.1):
            return taken, True
        options = [token for token in allowed(one, words) if token not in words.guidance.eos_tokens]
        if one.imposed:
            assert options == [one.imposed[0]]
        if not options:
            return taken, one.matcher.is_accepting()
        forced = one.forced()
        hint = words.encode(chance.choice(leading))
        step = hint if chance.random() < 0.6 and not one.imposed and one.matcher.validate_tokens(hint) == len(hint) else None
        for token in forced or step or [chance.choice(options)]:
            if one.imposed and token != one.imposed[0]:
                break
            taken.append(token)
            if not one.accept(token):
                return taken, True
    return taken, False


def text_of(words: Words, tokens: list[int]) -> str:
    """Where it was cut off without the beginning of a character."""
    return b"".join(words.bytes_of(token) for token in tokens).decode(errors="ignore")


def read(template: ResponseTemplate, text: str, *, ended: bool, tools: str = "", prompt: str = "") -> Message:
    parser = ChatParser(template, prompt=prompt, tools=read_tools(json.loads(tools or "[]")))
    deltas = [*parser.feed(text), *parser.finish(stopped=ended)]
    assert not any(isinstance(delta, ToolCallFailed) for delta in deltas)
    return collect(deltas)


FAMILIES = ["hermes", "qwen3_coder", "llama3_json", "mistral", "openai", "gemma4", "glm45", "pythonic", "deepseek_v31"]


@VOCABULARIES
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_walks_are_calls_or_content_of_the_form_and_end_thinking_in_time(name: str, required: bool, words: Words) -> None:
    template, tools, budget = family(name), tools_of(*TOOLS, strict=True), 12
    schemas = {tool["name"]: tool["parameters"] for tool in TOOLS}
    form: dict[str, Any] = {"tools": tools, "required": required, "content": StructuredOutputsParams(json=ORDER)}
    made = grammars(words).constraints(
        ResponseParams(template=json.dumps(template.spec), thinking="maybe", max_thinking_tokens=budget, **form)
    )
    chance = random.Random(f"{name} {required}")
    for _ in range(4):
        tokens, ended = walk(made(), words, chance, [text for text in hints(template) if text])
        text = text_of(words, tokens)
        message = read(template, text, ended=ended, tools=tools)
        for call in message.tool_calls:
            assert call.complete or not ended
            if call.complete:
                jsonschema.validate(json.loads(call.arguments), schemas[call.name])
        if ended:
            preamble = required and name == "openai"
            assert preamble or bool(message.tool_calls) != bool((message.content or "").strip()), text
            assert message.tool_calls or not required
            if not message.tool_calls:
                jsonschema.validate(json.loads(message.content or ""), ORDER)
        if message.reasoning and template.reasoning is not None:
            assert len(words.encode(message.reasoning)) <= 3 * budget + 8, "a character of several tokens may be ended"


@VOCABULARIES
@pytest.mark.parametrize("name", ["hermes", "llama3_json", "openai", "gemma4", "mistral"])
def test_calls_or_content(name: str, words: Words) -> None:
    calls = {
        "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city":"x"}}\n</tool_call>',
        "llama3_json": '{"name": "get_weather", "parameters": {"city":"x"}}',
        "openai": '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"x"}'
        + ("" if words.end_tokens else "<|call|>"),
        "gemma4": '<|tool_call>call:get_weather{city:<|"|>x<|"|>}<tool_call|>',
        "mistral": '[TOOL_CALLS]get_weather[ARGS]{"city":"x"}',
    }
    mark = "<|channel|>final<|message|>" if name == "openai" else ""
    form: dict[str, Any] = {"tools": tools_of(*TOOLS), "content": StructuredOutputsParams(json=ORDER)}
    for text in (calls[name], mark + '{"order": 1, "name": "bc"}', mark + '{"order":1,"name":"a"}'):
        one = constraint(words, family(name), **form)
        assert say(one, words, text), text
        assert is_whole(one), text
    for text in ("Hello", mark + '{"order": 1, "name": "c"', mark + "(", f"Hello {calls[name]}"):
        assert not say(constraint(words, family(name), **form), words, text), text
    required = constraint(words, family(name), required=True, **form)
    assert not say(required, words, mark + '{"order"')


@VOCABULARIES
def test_content_alone_behind_thinking(words: Words) -> None:
    for content, right, wrong in (
        (StructuredOutputsParams(json=ORDER), '{"order":1,"name":"a"}', '{"name"'),
        (StructuredOutputsParams(regex="[a-z]{2}"), "ab", "abc"),
        (StructuredOutputsParams(choice=["yes", "no"]), "yes", "maybe"),
        (StructuredOutputsParams(grammar='start: "x" y\ny: "y"+'), "xyy", "xx"),
        (StructuredOutputsParams(json_object=True), '{"a":[1]}', "1"),
    ):
        for thinking, before in (("none", ""), ("maybe", ""), ("maybe", "<think>a b</think>\n\n"), ("open", "a</think>")):
            one = constraint(words, family("hermes"), thinking=thinking, content=content)
            assert say(one, words, before + right)
            assert is_whole(one)
            assert not say(constraint(words, family("hermes"), thinking=thinking, content=content), words, before + wrong)


@VOCABULARIES
def test_what_the_format_and_the_schema_leave_no_choice_of_is_forced(words: Words) -> None:
    compact = StructuredOutputsParams(json=ORDER, disable_any_whitespace=True)
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
    weather = tools_of({"name": "get_weather", "parameters": city}, strict=True)

    def forced(said: str, **form: Any) -> str:
        one = constraint(words, family("hermes"), **form)
        assert say(one, words, said)
        return words.text(list(one.forced()))

    for form in ({"tools": weather}, {"tools": weather, "required": True}, {"tools": weather, "content": compact}):
        assert forced("<tool_call>", **form) == '\n{"name": "get_weather", "arguments": {'
        assert forced('<tool_call>\n{"name": "get_weather", "arguments": {"city":"x"}', **form).startswith("}\n")
    assert forced("", tools=weather, required=True).startswith("<tool_call>")
    assert forced("{", content=compact) == '"order":'
    assert forced("<think>a</think>{", content=compact, thinking="maybe") == '"order":'
    assert forced("<tool_call>", tools=tools_of(*TOOLS)) == '\n{"name": "'


def test_text_that_reads_like_a_special_token_is_not_forced() -> None:
    words = SPECIAL
    named = {"type": "object", "properties": {"a": {"const": "<think>"}}, "required": ["a"], "description": "<think>"}
    one = constraint(words, family("hermes"), tools=tools_of({"name": "f", "parameters": named}, strict=True), required=True)
    text = '<tool_call>\n{"name": "f", "arguments": {"a":"'
    assert say(one, words, text)
    inside = [token for piece in "<think>" for token in words.encode(piece)]
    for token in inside:
        assert token in allowed(one, words)
        assert one.accept(token)
    assert say(one, words, '"}}\n</tool_call>')
    said = {"type": "object", "properties": {"a": {"type": "string"}}, "description": "<think>"}
    free = constraint(words, family("hermes"), tools=tools_of({"name": "f", "parameters": said}), required=True)
    assert free.forced(), "what is no part of the form forbids nothing"


UNSUPPORTED = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}
UNCOMPILED = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}, "required": ["a"]}


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "olmo3", "gemma4"])
@pytest.mark.parametrize(
    ("schema", "says"), [(UNSUPPORTED, "properties.a.uniqueItems is not supported"), (UNCOMPILED, "pattern")]
)
def test_a_schema_that_cannot_be_held_to_is_refused_where_it_must_be(name: str, schema: dict[str, Any], says: str) -> None:
    bad = {"name": "f", "parameters": schema}
    if name in ("qwen3_coder", "gemma4") and schema is UNCOMPILED:
        pytest.skip("the format does not hold strings to patterns")
    for tools, required in ((tools_of(bad, strict=True), False), (tools_of(bad), True)):
        with pytest.raises(InvalidRequestError) as refused:
            constraint(PLAIN, family(name), tools=tools, required=required)
        assert refused.value.param == "tools[0].function.parameters"
        assert refused.value.message.startswith("tools[0].function.parameters: ")
        assert says in refused.value.message
    begun = {
        "hermes": '<tool_call>\n{"name": "f", "arguments": {"b": [1, 1]}}\n</tool_call>',
        "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=b>\n[1, 1]\n</parameter>\n<parameter=c>\nx\n</parameter>\n"
        "</function>\n</tool_call>",
        "olmo3": '<function_calls>\nf(b=[1, 1], c="x")\n</function_calls>',
        "gemma4": "<|tool_call>call:f{b:[1,1]}<tool_call|>",
    }
    one = constraint(PLAIN, family(name), tools=tools_of(TOOLS[0], bad))
    assert say(one, PLAIN, begun[name])
    assert is_whole(one)


def test_a_format_that_cannot_hold_a_schema_takes_any_object() -> None:
    either = {"name": "f", "parameters": {"anyOf": [{"type": "object", "properties": {"a": {}}}]}}
    with pytest.raises(InvalidRequestError, match="this model writes each argument by itself") as refused:
        constraint(PLAIN, family("qwen3_coder"), tools=tools_of(either, strict=True))
    assert refused.value.param == "tools[0].function.parameters"
    assert say(
        constraint(PLAIN, family("qwen3_coder"), tools=tools_of(either)), PLAIN, "<tool_call>\n<function=f>\n<parameter=b>"
    )


def test_what_is_wrong_with_content_is_said_of_it() -> None:
    tools = tools_of(*TOOLS)
    for content, param, says in (
        (StructuredOutputsParams(json={"not": {}}), "structured_outputs.json", "not is not supported"),
        (
            StructuredOutputsParams(json={"properties": {"b": {"type": "string", "pattern": "(?=a)"}}}),
            "structured_outputs.json",
            "properties.b.pattern",
        ),
        (StructuredOutputsParams(grammar="start: nothing"), "structured_outputs.grammar", "nothing"),
    ):
        for given in ("", tools):
            with pytest.raises(InvalidRequestError, match=re.escape(says)) as refused:
                constraint(PLAIN, family("hermes"), tools=given, content=content)
            assert refused.value.param == param


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"tools": "{"}, "tools"),
        ({"tools": "[]"}, "tools"),
        ({"tools": "[1]"}, "tools"),
        ({"tools": '[{"name": "a b"}]'}, "tools[0].name"),
        ({"tools": '[{"name": "a", "strict": 1}]'}, "tools"),
        ({"tools": '[{"name": "a", "path": "p", "strict": true, "parameters": {"type": "string"}}]'}, "p"),
        ({"template": "[]"}, "structured_outputs.template"),
        ({"template": "{"}, "structured_outputs.template"),
    ],
)
def test_what_is_no_form_is_refused(form: dict[str, Any], param: str) -> None:
    template = json.dumps(family("hermes").spec)
    with pytest.raises(InvalidRequestError) as refused:
        grammars(PLAIN).constraints(ResponseParams(**{"template": template, **form}))
    assert refused.value.param == param


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "gemma4", "olmo3"])
def test_odd_schemas_end_no_thread(name: str) -> None:
    again = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "string"}]}}}
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(90):
        deep = {"type": "object", "properties": {"a": deep}}
    odd: list[dict[str, Any]] = [
        *({keyword: value} for keyword in ("properties", "required", "$defs", "anyOf") for value in (5, [5], "x", {"a": 5})),
        *({"properties": {"a": {keyword: 5}}} for keyword in ("enum", "type", "anyOf", "minLength", "items", "$ref", "oneOf")),
        {"properties": {"a": {"type": [{}, "string"], "maxLength": "3}"}}},
        {"properties": {"a": {"type": "array", "minItems": "x"}}},
        again,
        deep,
    ]
    for schema in odd:
        constraint(PLAIN, family(name), tools=tools_of({"name": "f", "parameters": schema}))
        assert refused_param(name, schema) in (None, "tools[0].function.parameters"), schema


def refused_param(name: str, schema: dict[str, Any]) -> str | None:
    try:
        constraint(PLAIN, family(name), tools=tools_of({"name": "f", "parameters": schema}, strict=True))
    except InvalidRequestError as error:
        return error.param
    return None
