"""What a grammar lets through, sampled at random, is read as calls whose arguments are of their schemas."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from jaxserve.chat_parsing import (
    ChatParser,
    ResponseTemplate,
    ToolCallFailed,
    collect,
    load_template,
    read_tools,
    response_grammar,
)
from jaxserve.chat_parsing.families import FAMILIES
from jaxserve.chat_parsing.family import Family
from jaxserve.chat_parsing.writing import call_text
from jaxserve.grammar.source import json_options
from tests.unit.chat_parsing.transcripts import TOOLS
from tests.unit.chat_parsing.vocabularies import PLAIN, SPECIAL, Vocabulary

_NODE = {
    "type": "object",
    "properties": {"v": {"type": "number", "minimum": 0}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
}
HARDER: list[dict[str, Any]] = [
    {
        "name": "lookup",
        "parameters": {
            "type": "object",
            "$defs": {
                "Color": {"enum": ["red", "it's", 3]},
                "Node": {**_NODE, "required": ["v", "next"], "additionalProperties": False},
            },
            "properties": {
                "q": {"type": "string", "minLength": 2, "maxLength": 5},
                "color": {"$ref": "#/$defs/Color"},
                "node": {"$ref": "#/$defs/Node"},
                "either": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
                "maybe": {"type": ["string", "null"]},
                "list": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
                "flag": {"const": True},
            },
            "required": ["q", "node", "either", "list"],
            "additionalProperties": False,
        },
    },
    {"name": "optional", "parameters": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}},
]
TOOL_SET = read_tools([*TOOLS, *HARDER])
LONGEST = 600
SHARE_OF_HINTS = 0.6


def hints(template: ResponseTemplate) -> Iterator[str]:
    """Texts that lead somewhere: random tokens alone would hardly ever close a string or a tag."""
    yield from ['"', "}", "]", '",', '": ', "}\n", "1", "a", "'", ")", ","]
    text = call_text(template.fields["tool_calls"])
    assert text is not None
    for part in (text.begin, text.call, text.end, text.parameter, text.between or "", text.trigger):
        yield from filter(None, re.split(r"\{\w+\}", part))
    for field in template.fields.values():
        for marker in (field.open, field.close):
            yield from marker.literals if marker is not None else ()
    if template.reasoning is not None:
        yield from (template.reasoning.begin, template.reasoning.end)


def walk(
    template: ResponseTemplate, vocabulary: Vocabulary, grammar: str, chance: random.Random, *, least: int
) -> tuple[str, bool]:
    """A random response of the grammar, and whether it came to an end, which it does not before `least` tokens."""
    matcher = LLMatcher(vocabulary.guidance, grammar)
    assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar}"
    leading = [vocabulary.encode(text) for text in hints(template) if text]
    mask = allocate_token_bitmask(1, vocabulary.guidance.vocab_size)
    tokens: list[int] = []
    while len(tokens) < LONGEST:
        if matcher.is_stopped() or (matcher.is_accepting() and chance.random() < (0.3 if len(tokens) >= least else 0.01)):
            return vocabulary.text(tokens), True
        hint = chance.choice(leading)
        if chance.random() < SHARE_OF_HINTS and (taken := matcher.validate_tokens(hint)):
            step = hint[:taken]
        else:
            fill_next_token_bitmask(matcher, mask, 0)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            allowed = allowed[allowed != vocabulary.guidance.eos_token]
            if not len(allowed):
                return vocabulary.text(tokens), matcher.is_accepting()
            step = [int(chance.choice(list(allowed)))]
        assert matcher.consume_tokens(step)
        tokens += step
    return vocabulary.text(tokens, ended=False), False


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("vocabulary", [PLAIN, SPECIAL], ids=["plain", "special"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda item: item.tool_parsers[0])
def test_what_a_grammar_lets_through_is_read_as_valid_calls(
    family: Family, vocabulary: Vocabulary, required: bool, parallel: bool
) -> None:
    template = load_template(family.template)
    schemas = {tool.name: tool.parameters for tool in TOOL_SET}
    grammar = response_grammar(
        template,
        TOOL_SET,
        required=required,
        parallel=parallel,
        thinking="maybe",
        special_tokens=vocabulary.special,
        end_tokens=vocabulary.end_tokens,
        json_options=json_options(),
    )
    chance = random.Random(f"{family.tool_parsers} {required} {parallel}")
    for _ in range(3):
        text, ended = walk(template, vocabulary, grammar, chance, least=0 if required else 60)
        parser = ChatParser(template, tools=TOOL_SET)
        deltas = [*parser.feed(text), *parser.finish(stopped=ended)]
        message = collect(deltas)
        assert not any(isinstance(delta, ToolCallFailed) for delta in deltas)
        for call in message.tool_calls:
            assert call.complete or not ended
            if call.complete:
                jsonschema.validate(json.loads(call.arguments), schemas[call.name])
        if ended:
            assert message.tool_calls or not required
            assert parallel or len(message.tool_calls) <= 1
