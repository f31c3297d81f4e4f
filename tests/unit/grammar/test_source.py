"""Every kind of structured output but JSON schemas, as compiled: what is accepted, what is refused, and why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.compile import with_deep_stack
from jaxserve.grammar.shortest import least_repeated
from jaxserve.grammar.source import grammar_source, lark_of
from jaxserve.sampling.structured import StructuredOutputsParams
from tests.support.grammars import accepts, allowed, matcher, vocabulary


def refusal(**kind: Any) -> str:
    with pytest.raises(InvalidRequestError) as info:
        matcher(**kind)
    (name,) = kind
    assert info.value.param == f"structured_outputs.{name}"
    assert info.value.message.startswith(info.value.param)
    return info.value.message.removeprefix(info.value.param).removeprefix(":").strip()


def outcome(kind: dict[str, Any], texts: str) -> str:
    """Those of the texts, between bars, that are accepted."""
    compiled = matcher(**kind)
    return "|".join(text for text in texts.split("|") if accepts(compiled, text))


@pytest.mark.parametrize(
    ("regex", "texts", "accepted"),
    [
        ("[a-c]{2}/x?", "ab/|ab/x|a/|ab", "ab/|ab/x"),
        (r"\d{3}-\d{4}", "555-1234|555-123", "555-1234"),
        ("(yes|no)", "yes|no|maybe|yesno", "yes|no"),
        ("", "|x", ""),
        ("/\n+\\/", "/\n\n/|//", "/\n\n/"),
    ],
)
def test_regex(regex: str, texts: str, accepted: str) -> None:
    assert outcome({"regex": regex}, texts) == accepted


def test_choice() -> None:
    words = ["a", "ab", 'quo"te', "back\\slash", "new\nline", "日本", "\x7f\x01", "/*", ""]
    compiled = matcher(choice=words)
    assert all(accepts(compiled, word) for word in words)
    assert not any(accepts(compiled, word) for word in ("b", "aab", "abb", "quote"))
    many = matcher(choice=[f"value {number}" for number in range(10_000)])
    assert accepts(many, "value 7777")
    assert not accepts(many, "value 10000")


LARK = """
start: greeting ", " NAME "!"
greeting: "Hello" | "Hi"
NAME: /[A-Z][a-z]+/
"""
GBNF = r"""
root ::= item ("," item)*   # a list
item ::= [a-z]+ | "\"" [^"\\]* "\"" | "\u00e9\u0041" "\U0001F600"{2}
"""


def test_grammars_of_both_kinds() -> None:
    assert outcome({"grammar": LARK}, "Hello, Ada!|Hi, Bob!|Hey, Bob!|Hello, ada!") == "Hello, Ada!|Hi, Bob!"
    assert outcome({"grammar": GBNF}, 'a,b|"x y",éA😀😀|A|éA😀|a,') == 'a,b|"x y",éA😀😀'
    assert outcome({"grammar": 'start: x\nx: %json {"type": "integer"} // a comment'}, "5|x") == "5"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"regex": "(a"}, "regex parse error: unclosed group"),
        ({"regex": r"(a)\1"}, "regex parse error: backreferences are not supported"),
        ({"regex": "((a{1000}){1000}){1000}"}, "cannot be satisfied: no text has less than 1000000 characters"),
        ({"grammar": "start: foo"}, 'at 1(8): unknown name: "foo"'),
        ({"grammar": "begin: /a/"}, "no start rule found"),
        ({"grammar": "root ::= [a"}, "is not a GBNF grammar that can be read: Unexpected end of input"),
        ({"grammar": "root ::= other"}, "is not a GBNF grammar that can be read: Rule 'other' not found"),
        ({"grammar": "root ::= " + "(" * 30_000}, "is not a GBNF grammar that can be read"),
        ({"grammar": "start: " + "(" * 30_000 + '"a"' + ")" * 30_000}, "1("),
        ({"grammar": "root ::= a\n" + 'a ::= "x"\n' * 1000}, "must be at most 1000 rules of GBNF"),
        ({"grammar": '{"grammars": [{"json_schema": {}}]}'}, "trailing characters"),
    ],
)
def test_what_cannot_be_compiled(kind: dict[str, Any], message: str) -> None:
    assert refusal(**kind).startswith(message)


def test_looking_at_a_text_takes_no_more_time_than_it_has_characters() -> None:
    for text in ("[" * 60_000, "(" * 60_000, "\n" * 60_000 + "x", "a" * 60_000, " " * 60_000 + "x"):
        assert 0 <= least_repeated(text) <= len(text)
        assert lark_of(text, "") == text


def test_what_a_grammar_forces_is_never_computed_ahead() -> None:
    """Else a few characters would keep a thread for minutes: here 900 million, and 2 to the 40."""
    doubled = "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(40))
    for grammar in ('start: A{30000}\nA: "b"{30000}', f'start: a0\n{doubled}\na40: "x"'):
        for option in ("", '\n%llguidance {"no_forcing": false}'):
            assert matcher(grammar=grammar + option).compute_ff_tokens() == []


def test_rules_that_refer_to_thousands_of_others_end_no_process() -> None:
    chain = "\n".join(f"a{i}:a{i + 1}" for i in range(5500))
    assert accepts(matcher(grammar=f'start: a0\n{chain}\na5500: "x"'), "x")


def test_work_with_a_deep_stack_gives_what_it_gives() -> None:
    assert with_deep_stack(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        with_deep_stack(lambda: 1 // 0)


CALL = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}
OLDER = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": CALL["json_schema"], "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "string"}, "end": "</f>"},
    ],
    "triggers": ["<f"],
}


def tag(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": {"type": kind, **fields}}


def const(value: str) -> dict[str, str]:
    return {"type": "const_string", "value": value}


ANY = {"type": "any_text"}
A = {"type": "tag", "begin": "<a>", "content": CALL, "end": "</a>"}
B = {"type": "tag", "begin": "<b>", "content": ANY, "end": ["</b>", "!"]}


@pytest.mark.parametrize(
    ("value", "texts", "accepted"),
    [
        (
            OLDER,
            'hi|hi <f=a>{"x":1}</f>|<f=b>"s"</f> and <f=a>{"x":2}</f>.|<f=c>|x <f|<f=a>{}</f>|a < b',
            'hi|hi <f=a>{"x":1}</f>|<f=b>"s"</f> and <f=a>{"x":2}</f>.|a < b',
        ),
        (tag("const_string", value='a"/\n'), 'a"/\n|a', 'a"/\n'),
        (tag("regex", pattern="a/b+"), "a/bb|a/", "a/bb"),
        (tag("json_schema", json_schema=CALL["json_schema"]), '{"x":1}|{}', '{"x":1}'),
        (tag("any_text"), "|anything\nat all", "|anything\nat all"),
        (tag("or", elements=[const("x"), CALL]), 'x|{"x":1}|y', 'x|{"x":1}'),
        (tag("sequence", elements=[const("x"), CALL, const("y"), const("z")]), 'x{"x":1}yz|x{"x":1}', 'x{"x":1}yz'),
        (tag("sequence", elements=[ANY, const("--"), CALL]), 'so --{"x":1}|--{"x":1}|{"x":1}', 'so --{"x":1}|--{"x":1}'),
        (tag("tag", **{k: v for k, v in B.items() if k != "type"}), "<b>so</b>|<b>so!|<b>so|so</b>", "<b>so</b>|<b>so!"),
        (
            tag("triggered_tags", triggers=["<a", "<b"], tags=[A, B]),
            'x|x <a>{"x":1}</a> <b> y </b>|<a>|<ax',
            'x|x <a>{"x":1}</a> <b> y </b>',
        ),
        (tag("triggered_tags", triggers=["<a"], tags=[A], at_least_one=True), 'x|x <a>{"x":1}</a>', 'x <a>{"x":1}</a>'),
        (
            tag("triggered_tags", triggers=["<a"], tags=[A], stop_after_first=True),
            'x|x <a>{"x":1}</a>|x <a>{"x":1}</a>y',
            'x|x <a>{"x":1}</a>',
        ),
        (
            tag("tags_with_separator", tags=[A], separator=", "),
            '|<a>{"x":1}</a>|<a>{"x":1}</a>, <a>{"x":2}</a>|<a>{"x":1}</a><a>{"x":2}</a>|x',
            '|<a>{"x":1}</a>|<a>{"x":1}</a>, <a>{"x":2}</a>',
        ),
        (
            tag("tags_with_separator", tags=[A], separator="", at_least_one=True, stop_after_first=True),
            '|<a>{"x":1}</a>|<a>{"x":1}</a><a>{"x":2}</a>',
            '<a>{"x":1}</a>',
        ),
    ],
)
def test_structural_tags(value: dict[str, Any], texts: str, accepted: str) -> None:
    assert outcome({"structural_tag": value}, texts) == accepted


def test_special_tokens_in_tags_are_those_tokens() -> None:
    name = "<|system|>"
    assert name in vocabulary().special
    called = {"type": "tag", "begin": f"{name}call:", "content": CALL, "end": "<|user|>"}
    compiled = matcher(structural_tag=tag("triggered_tags", triggers=[name], tags=[called]))
    assert accepts(compiled, 'so <|system|>call:{"x":1}<|user|> then', special=True)
    assert not accepts(compiled, "<|system|>so", special=True)
    assert compiled.deep_copy().consume_tokens(vocabulary().tokens.greedy_tokenize("<|system|>so"))  # as text it is no token
    thought = tag("sequence", elements=[{"type": "tag", "begin": "", "content": ANY, "end": "<|user|>\n"}, CALL])
    assert accepts(matcher(structural_tag=thought), 'hm\n<|user|>\n{"x":1}', special=True)


@pytest.mark.parametrize("kind", [{"choice": ["a<|end|>b"]}, {"json": {"const": "<|end|>"}}])
def test_text_that_reads_as_a_special_token_is_never_written_by_it(kind: dict[str, Any]) -> None:
    one = matcher(**kind)
    while not one.is_accepting():
        token = allowed(one)[0]
        assert token not in vocabulary().special.values()
        assert one.consume_token(token), one.get_error()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"format": ANY}, 'must be an object with type "structural_tag"'),
        ({"type": "structural_tag"}, "structures must be a list that is not empty"),
        ({**OLDER, "triggers": ["<g"]}, "structures[0].begin must begin with one of the triggers"),
        ({**OLDER, "triggers": [5]}, "triggers must be strings that are not empty"),
        ({**OLDER, "structures": [{"begin": "<f"}]}, "structures[0] must be an object with begin, schema and end"),
        (
            {**OLDER, "structures": [{"begin": "<f>", "schema": {"properties": {"a": {"not": {}}}}, "end": ""}]},
            "structures[0].schema: properties.a.not is not supported",
        ),
        (tag("token", token=5), "format.type must be one of const_string, json_schema, regex, any_text"),
        (tag("const_string"), "format.value must be a string"),
        (tag("json_schema", json_schema={"$ref": "#"}), "cannot be satisfied: nothing that ends is allowed"),
        (tag("json_schema", json_schema={}, style="qwen_xml"), 'format.style must be "json"'),
        (tag("any_text", excludes=["x"]), "format.excludes is not supported"),
        (tag("or", elements=[]), "format.elements must be a list that is not empty"),
        (tag("sequence", elements=[ANY, CALL]), "format.elements[0] is any_text, which is only supported last"),
        (tag("tag", begin="a", content=ANY), "format.end must be a string, or a list of strings"),
        (tag("triggered_tags", triggers=["<a"], tags=["x"]), "format.tags[0] must be a tag"),
        (tag("regex", pattern="a{2000000}"), "format.pattern cannot be satisfied: no text has less than 1000000 characters"),
    ],
)
def test_structural_tags_that_are_refused(value: dict[str, Any], message: str) -> None:
    assert refusal(structural_tag=value).startswith(message)


def nested(depth: int, leaf: dict[str, Any], ends: list[str]) -> dict[str, Any]:
    for _ in range(depth):
        leaf = {"type": "tag", "begin": "<", "content": leaf, "end": ends}
    return leaf


@pytest.mark.parametrize(
    "content",
    [
        nested(30, ANY, [">", ")"]),
        nested(30, ANY, ["", ")"]),
        nested(30, {"type": "const_string", "value": "x"}, [">", ")"]),
        nested(30, {"type": "or", "elements": [ANY, {"type": "const_string", "value": "x"}] * 20}, [f"/{n}" for n in range(50)]),
        nested(1, {"type": "or", "elements": [ANY] * 500}, ["long" * 1000]),
        nested(30, {"type": "sequence", "elements": [ANY, {"type": "const_string", "value": "x" * 300}]}, ["y" * 300, "z"]),
    ],
)
def test_structural_tags_grow_linearly(content: dict[str, Any]) -> None:
    value = {"type": "structural_tag", "format": content}
    source = grammar_source(StructuredOutputsParams(structural_tag=value))
    assert len(source) < 4 * len(json.dumps(value)) + 1000
    matcher(structural_tag=value)


def test_tags_inside_tags_without_end_are_refused() -> None:
    deep: dict[str, Any] = ANY
    for _ in range(900):
        deep = {"type": "tag", "begin": "a", "content": deep, "end": "b"}
    assert refusal(structural_tag={"type": "structural_tag", "format": deep})


def test_schemas_of_a_tag_share_their_steps() -> None:
    union = {"oneOf": [{"const": n} for n in range(150)]}
    elements = [{"type": "json_schema", "json_schema": union} for _ in range(30)]
    assert "takes more than" in refusal(structural_tag=tag("or", elements=elements))
