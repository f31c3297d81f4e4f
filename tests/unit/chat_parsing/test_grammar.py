"""Grammars of responses with calls: what they let through and what they do not, with and without special tokens."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from llguidance import LLMatcher

from jaxserve.chat_parsing import (
    ChatParser,
    ResponseTemplate,
    Thinking,
    Tool,
    find_template,
    load_template,
    read_tools,
    response_grammar,
)
from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.source import json_options
from tests.unit.chat_parsing.transcripts import TOOLS
from tests.unit.chat_parsing.vocabularies import PLAIN, SPECIAL, Vocabulary

TOOL_SET = read_tools(TOOLS)
VOCABULARIES = pytest.mark.parametrize("vocabulary", [PLAIN, SPECIAL], ids=["plain", "special"])


def family(name: str, shown_by: str = "") -> ResponseTemplate:
    template = find_template(shown_by, tool_call_parser=name, reasoning_parser="openai_gptoss" if name == "openai" else "qwen3")
    assert template is not None
    return template


def accepts(grammar: str, vocabulary: Vocabulary, text: str) -> bool:
    """Whether the grammar lets all of the text through and it may end there."""
    matcher = LLMatcher(vocabulary.guidance, grammar)
    assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar}"
    tokens = vocabulary.encode(text)
    return int(matcher.try_consume_tokens(tokens)) == len(tokens) and bool(matcher.is_accepting())


def grammar_of(template: ResponseTemplate, vocabulary: Vocabulary, tools: Any = TOOL_SET, **options: Any) -> str:
    return response_grammar(
        template,
        tools,
        **{"required": True, **options},
        special_tokens=vocabulary.special,
        end_tokens=vocabulary.end_tokens,
        json_options=json_options(),
    )


# Two calls (or one, where a response has no more), as each family writes them; then what is wrong in one of them.
CALLS = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=unit>\ncelsius\n</parameter>\n"
    "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n"
    "</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
    "llama3_json": '{"name": "get_weather", "parameters": {"city": "Paris"}}',
    "mistral": '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}',
    "deepseek_v3": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris"}\n```'
    "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "openai": '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}',
    "granite": '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
    "phi4_mini_json": '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, '
    '{"name": "now", "arguments": {}}]<|/tool_call|>',
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|><|tool_call>call:now{}<tool_call|>',
    "functiongemma": "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>"
    "<start_function_call>call:now{}<end_function_call>",
    "glm45": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>\n"
    "<tool_call>now\n</tool_call>",
    "glm47": "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call><tool_call>now</tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|>"
    '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}'
    "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="unit" string="true">celsius</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "lfm2": "<|tool_call_start|>[get_weather(city='Paris', days=3), now()]<|tool_call_end|>",
    "nemotron_json": '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}, '
    '{"name": "now", "arguments": {}}]</TOOLCALL>',
    "cohere_command3": "<|START_ACTION|>[\n"
    '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}},\n'
    '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
    '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    "olmo3": "<function_calls>\nget_weather(city='Paris', unit=\"celsius\", days=3)\nnow()\n</function_calls>",
    "pythonic": "[get_weather(city='Paris'), now()]",
    "xlam": '[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
}
SEVERAL = [name for name in CALLS if name not in ("llama3_json", "openai")]


@VOCABULARIES
@pytest.mark.parametrize("name", CALLS)
def test_calls_as_the_family_writes_them(name: str, vocabulary: Vocabulary) -> None:
    text, template = CALLS[name], family(name)
    text += "<|call|>" if name == "openai" and not vocabulary.end_tokens else ""
    for required in (True, False):
        grammar = grammar_of(template, vocabulary, required=required)
        assert accepts(grammar, vocabulary, text)
        for wrong in (
            text.replace("get_weather", "get_wether"),
            text.replace("Paris", "", 1).replace("city", "town", 1),
            text[:-1],
        ):
            assert wrong != text
            assert not accepts(grammar, vocabulary, wrong)
    assert not accepts(grammar_of(template, vocabulary, [TOOL_SET[2]]), vocabulary, text)


@VOCABULARIES
@pytest.mark.parametrize("name", SEVERAL)
def test_one_call_where_they_may_not_be_parallel(name: str, vocabulary: Vocabulary) -> None:
    assert not accepts(grammar_of(family(name), vocabulary, parallel=False), vocabulary, CALLS[name])
    assert not accepts(grammar_of(family(name), vocabulary, parallel=False, required=False), vocabulary, CALLS[name])


@VOCABULARIES
def test_auto_is_text_until_a_call_begins(vocabulary: Vocabulary) -> None:
    grammar = grammar_of(family("hermes"), vocabulary, required=False)
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for right in ("", "Hello < b> tool_call", f"Let me see.{call}", f"{call}\n\nand{call} done."):
        assert accepts(grammar, vocabulary, right)
    for wrong in ("<tool_call>", "a <tool_call> b", f"{call}<tool_call>\n", f"a{call[:-12]}"):
        assert not accepts(grammar, vocabulary, wrong)
    required = grammar_of(family("hermes"), vocabulary)
    assert accepts(required, vocabulary, call)
    for wrong in ("", "Hello", f"Hello{call}", f"{call} done"):
        assert not accepts(required, vocabulary, wrong)


def test_text_may_have_what_is_no_mark_in_it() -> None:
    grammar = grammar_of(family("phi4_mini_json", shown_by="functools"), PLAIN, required=False)
    assert accepts(grammar, PLAIN, "import functools")
    assert accepts(grammar, PLAIN, 'functools[{"name": "now", "arguments": {}}]')
    assert not accepts(grammar, PLAIN, "functools[1]")


@VOCABULARIES
def test_auto_where_calls_have_no_mark(vocabulary: Vocabulary) -> None:
    for name, right, wrong in (
        ("llama3_json", '{"answer": 1}', '{"name": "Bob"}'),
        ("pythonic", "[1, 2]", "[bob(a=1)]"),
    ):
        grammar = grammar_of(family(name), vocabulary, required=False)
        assert accepts(grammar, vocabulary, right)
        assert accepts(grammar, vocabulary, "Hello [get_weather(")
        assert accepts(grammar, vocabulary, CALLS[name])
        assert not accepts(grammar, vocabulary, wrong)


@VOCABULARIES
@pytest.mark.parametrize(
    ("thinking", "right", "wrong"),
    [
        ("none", ["{call}"], ["<think>a</think>{call}"]),
        (
            "maybe",
            ["{call}", "<think>\na <b>\n</think>\n\n{call}", "\n<think></think>{call}"],
            ["a</think>{call}", "<think>a{call}"],
        ),
        ("open", ["a</think>{call}", "</think>\n\n{call}"], ["{call}", "a</think>b{call}"]),
        ("closed", ["\n\n{call}", "{call}"], ["a{call}"]),
    ],
)
def test_calls_come_behind_thinking(thinking: Thinking, right: list[str], wrong: list[str], vocabulary: Vocabulary) -> None:
    for name in ("hermes", "minimax_m2", "deepseek_v3"):
        grammar = grammar_of(family(name), vocabulary, thinking=thinking)
        for text in right:
            assert accepts(grammar, vocabulary, text.replace("{call}", CALLS[name]))
        for text in wrong:
            assert not accepts(grammar, vocabulary, text.replace("{call}", CALLS[name]))


@VOCABULARIES
def test_channels(vocabulary: Vocabulary) -> None:
    template = family("openai")
    call = CALLS["openai"] + ("" if vocabulary.end_tokens else "<|call|>")
    final = "<|channel|>final<|message|>Hello"
    analysis, preamble = (
        f"<|channel|>{channel}<|message|>Hm.<|end|><|start|>assistant" for channel in ("analysis", "commentary")
    )
    auto = grammar_of(template, vocabulary, required=False, thinking="maybe")
    required = grammar_of(template, vocabulary, thinking="maybe")
    for before in ("", analysis, preamble, analysis + preamble + analysis):
        assert accepts(auto, vocabulary, before + final)
        assert accepts(auto, vocabulary, before + call)
        assert accepts(required, vocabulary, before + call)
        assert not accepts(required, vocabulary, before + final)
    for wrong in (call + call, call + final, "Hello", analysis):
        assert not accepts(auto, vocabulary, wrong)
    closed = grammar_of(template, vocabulary, thinking="closed")
    assert accepts(closed, vocabulary, "<|start|>assistant" + call)
    assert not accepts(closed, vocabulary, call)


COLORS = Tool(
    "paint",
    {
        "type": "object",
        "properties": {
            "color": {"$ref": "#/$defs/Color"},
            "text": {"type": "string", "minLength": 2, "maxLength": 3},
            "count": {"type": "integer", "minimum": 5},
        },
        "$defs": {"Color": {"enum": ["red", "deep blue"]}},
        "required": ["color"],
    },
)


@VOCABULARIES
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("hermes", '<tool_call>\n{"name": "paint", "arguments": {A}}\n</tool_call>'),
        ("qwen3_coder", "<tool_call>\n<function=paint>\n{A}</function>\n</tool_call>"),
        ("glm47", "<tool_call>paint{A}</tool_call>"),
        ("gemma4", "<|tool_call>call:paint{A}<tool_call|>"),
        ("olmo3", "<function_calls>\npaint({A})\n</function_calls>"),
    ],
)
def test_arguments_are_of_the_schema(name: str, form: str, vocabulary: Vocabulary) -> None:
    forms: dict[str, Callable[[dict[str, Any]], str]] = {
        "hermes": json.dumps,
        "qwen3_coder": lambda values: "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()),
        "glm47": lambda values: "".join(
            f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values.items()
        ),
        "gemma4": lambda values: "{" + ",".join(f"{key}:{gemma(value)}" for key, value in sorted(values.items())) + "}",
        "olmo3": lambda values: ", ".join(f"{key}={value!r}" for key, value in values.items()),
    }
    written = forms[name]

    def gemma(value: Any) -> str:
        return f'<|"|>{value}<|"|>' if isinstance(value, str) else str(value)

    grammar = grammar_of(family(name), vocabulary, [COLORS])
    for right in ({"color": "deep blue"}, {"color": "red", "count": 5}):
        assert accepts(grammar, vocabulary, form.replace("{A}", written(right)))
    wrongs: list[dict[str, Any]] = [
        {},
        {"color": "pink"},
        {"color": "red", "count": 4},
        {"color": "red", "count": "five"},
        {"count": 5},
    ]
    if name != "olmo3":  # its strings are written by this test with quotes that the grammar leaves to strings of any length
        assert accepts(grammar, vocabulary, form.replace("{A}", written({"color": "red", "text": "abc"})))
        wrongs += [{"color": "red", "text": "a"}, {"color": "red", "text": "abcd"}]
    for wrong in wrongs:
        assert not accepts(grammar, vocabulary, form.replace("{A}", written(wrong)))


def test_a_template_without_writes_is_written_as_short_as_its_patterns_allow() -> None:
    named = {"type": "function", "function": {"name": "{fn}", "arguments": "{content}"}}
    each = {"function": {"name": "{tool_name}", "arguments": "{parameters}"}}
    tag = {"tag_pattern": r"<(?P<key>\w+)>\s*(?P<value>.*?)\s*</p>"}
    for field, text, broken in (
        (
            {"open_pattern": r"\s*<call>\s*(?P<fn>\w+):", "close": "</call>", "content": "json", "transform": named},
            '<call>now:{}</call><call>get_weather:{"city": "x"}</call>',
            "<call>no:{}</call>",
        ),
        (
            {"open": ["<c>", "<cc>"], "close_pattern": "</c>|$", "content": "json", "transform_each": True, "transform": each},
            '<c>[{"tool_name": "now", "parameters": {}}, {"tool_name": "now", "parameters": {}}]</c>',
            "<c>[]</c>",
        ),
        (
            {
                "open_pattern": r"<f (?P<fn>[^>]+)>",
                "close": "</f>",
                "content": "xml-inline",
                "content_args": tag,
                "transform": named,
            },
            "<f get_weather><city>a b</p><days>3</p></f>",
            "<f get_weather><days>3</p></f>",
        ),
    ):
        template = load_template({"start_anchor": "A:", "fields": {"tool_calls": {**field, "repeats": True}, "content": {}}})
        for required in (True, False):
            grammar = grammar_of(template, PLAIN, required=required)
            assert accepts(grammar, PLAIN, text)
            assert not accepts(grammar, PLAIN, broken)
        parser = ChatParser(template, tools=TOOL_SET)
        assert not any(hasattr(delta, "text") and delta.text == text for delta in parser.feed(text) + parser.finish())


def test_a_format_that_cannot_be_written_is_free_or_refused() -> None:
    lines = {"open_pattern": r"<(?P<name>\w+)>", "close": "</>", "content": "kv-lines"}
    named = {"function": {"name": "{name}", "arguments": "{content}"}}
    template = load_template({"start_anchor": "A:", "fields": {"tool_calls": {**lines, "transform": named}, "content": {}}})
    plain = load_template({"start_anchor": "A:", "fields": {"content": {}}})
    for unwritable in (template, plain):
        assert accepts(grammar_of(unwritable, PLAIN, required=False), PLAIN, "Hello <now>")
        with pytest.raises(InvalidRequestError, match="does not say how it writes calls") as refused:
            grammar_of(unwritable, PLAIN)
        assert refused.value.param == "tool_choice"


def test_schemas_that_tags_cannot_hold_are_refused() -> None:
    parameters: dict[str, Any]
    for parameters in ({"anyOf": [{"properties": {}}]}, {"properties": {"a>b": {}}}):
        with pytest.raises(InvalidRequestError, match=r"f( must| has)|of f must"):
            grammar_of(family("qwen3_coder"), PLAIN, [Tool("f", parameters)])
        assert grammar_of(family("hermes"), PLAIN, [Tool("f", parameters)])
