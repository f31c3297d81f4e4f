"""Constants of schemas may have any character of JSON: outputs write each of them, and nothing is left out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxserve.chat_parsing.lark import Lark, literal
from jaxserve.grammar.compile import compile_grammar
from jaxserve.grammar.source import json_options
from tests.support.grammars import END, accepts, allowed, matcher, vocabulary

KEYED = {"type": "object", "minProperties": 1, "additionalProperties": False}

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    "\x00\x01\x1f\x7f\x80\\\"'/\n\u2028\uffff{<a", max_size=8
)


def spelled(value: object) -> str:
    """JSON with the fewest escapes, but for U+007F, for which outputs have one."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("\x7f", "\\u007f")


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(0, 11))
@example("a\x7fb", 1)
@example("\x01", 0)
@example("\x00\x1f", 1)
def test_constants_are_written_whole(text: str, place: int) -> None:
    shorter = text[:place] + text[place + 1 :]
    for schema in ({"const": text}, {"enum": [text]}, {"anyOf": [{"const": text}, {"type": "null"}]}):
        compiled = matcher(json=schema)
        assert accepts(compiled, spelled(text))
        assert shorter == text or not accepts(compiled, spelled(shorter))
    assert accepts(matcher(json={"const": {"k": [text]}}), spelled({"k": [text]}))
    assert accepts(matcher(choice=[text, text + "x"]), text)


@settings(max_examples=30, deadline=None)
@given(TEXTS)
@example("\x7f\x01")
def test_names_of_properties_are_written_whole(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"const": name}}, "required": [name], "additionalProperties": False}
    compiled = matcher(json=schema, disable_any_whitespace=True)
    key = json.dumps(name, ensure_ascii=False)
    assert accepts(compiled, f"{{{key}:{spelled(name)}}}")
    assert not accepts(compiled, "{}")


@settings(max_examples=30, deadline=None)
@given(TEXTS.filter(lambda text: "<" not in text))
@example("\x7f\x01")
def test_pieces_of_tool_calls_are_written_whole(text: str) -> None:
    """As tags write them, as text up to an end, and as JSON."""
    lark = Lark({}, json_options())
    value = lark.until(f"<{text}")
    start = f"{lark.literal(f'={text}')} {lark.json({'const': text})} {value}"
    compiled = compile_grammar(f"start: {start}\n{lark.text}", vocabulary().tokens, "tools")
    assert accepts(compiled, f"={text}{spelled(text)}some <{text}")
    assert text == "" or not accepts(compiled, f"={spelled(text)}some <{text}")


def test_patterns_may_name_control_characters() -> None:
    for pattern in ("^a\x7f\x01$", r"^a\x7f\x01$", r"^a\u007f\u0001$"):
        assert accepts(matcher(json={"type": "string", "pattern": pattern}), '"a\\u007f\\u0001"'), pattern


def test_other_strings_have_no_escapes_by_code() -> None:
    for schema in ({"type": "string"}, {"const": "\b\t\n"}, {"type": "string", "pattern": "^[a-z]*$"}):
        assert not any(accepts(matcher(json=schema), text) for text in ('"\\u0001"', '"\\u0009"', '"\\u0008\\t\\n"'))


def test_literals_of_lark_have_only_characters_that_its_lexer_reads() -> None:
    written = literal("".join(map(chr, range(0x100))))
    assert re.fullmatch(r"[^\x00-\x1f\x7f]*", written)


def of_parts(constant: str, pattern: str) -> dict[str, object]:
    parts = [{"type": "const_string", "value": constant}, {"type": "regex", "pattern": pattern}]
    return {"type": "structural_tag", "format": {"type": "sequence", "elements": parts}}


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"regex": r"a<\|end\|>b"}, "a<|end|>b"),
        ({"regex": r"a[<]\x7cend\|>b"}, "a<|end|>b"),
        ({"regex": r"a\x3c\|end\|>b"}, "a<|end|>b"),
        ({"json": {"type": "string", "pattern": r"^a(<\|)(e)nd\|>b$"}}, '"a<|end|>b"'),
        (
            {"json": {"patternProperties": {r"^<\|end\|>$": {"const": 1}}, **KEYED}, "disable_any_whitespace": True},
            '{"<|end|>":1}',
        ),
        ({"structural_tag": of_parts("a<|en", "d[|]>b")}, "a<|end|>b"),
        ({"choice": ["a<|end|>b"]}, "a<|end|>b"),
    ],
)
def test_text_that_spells_a_special_token_is_written_as_text(form: dict[str, Any], text: str) -> None:
    """However the form spells it: a mask of one token must not be the special token."""
    one = matcher(**form).deep_copy()
    for character in text:
        (token,) = vocabulary().tokens.tokenize_str(character)
        assert token in allowed(one)
        assert END not in allowed(one)
        assert one.consume_token(token)
    assert allowed(one) == [END]


def test_ordinary_forms_are_forced() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}}, **KEYED, "required": ["name"]}
    one = matcher(json=schema, disable_any_whitespace=True).deep_copy()
    assert one.consume_token(vocabulary().tokens.tokenize_str("{")[0])
    assert vocabulary().tokens.decode_str(one.compute_ff_tokens()) == '"name":"'
    tagged = matcher(structural_tag=of_parts("<function=f>", "[a-z]+")).deep_copy()
    assert tagged.compute_ff_tokens()
