"""Responses read whole and in pieces: what becomes of them, and when."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from jaxserve.chat_parsing import (
    ChatParser,
    ContentDelta,
    Delta,
    Message,
    ReasoningDelta,
    ResponseTemplate,
    Tool,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallBegin,
    ToolCallEnd,
    ToolCallFailed,
    collect,
    find_template,
    load_template,
    parse,
    read_tools,
)
from tests.unit.chat_parsing.transcripts import TOOLS, TRANSCRIPTS, Transcript, template_of

TOOL_SET = read_tools(TOOLS)


def family(tool_call_parser: str, reasoning_parser: str = "none", shown_by: str = "") -> ResponseTemplate:
    template = find_template(shown_by, tool_call_parser=tool_call_parser, reasoning_parser=reasoning_parser)
    assert template is not None
    return template


def stream(template: ResponseTemplate, pieces: Iterable[str], *, prompt: str = "", stopped: bool = True) -> list[list[Delta]]:
    parser = ChatParser(template, prompt=prompt, tools=TOOL_SET)
    return [*(parser.feed(piece) for piece in pieces), parser.finish(stopped=stopped)]


HERMES = family("hermes", "qwen3")


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda item: item.tool_call_parser)
def test_a_transcript_of_each_family(transcript: Transcript) -> None:
    message = parse(template_of(transcript), transcript.text, prompt=transcript.prompt, tools=TOOL_SET)
    assert message == transcript.message
    for call in message.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


def test_deltas_come_as_soon_as_they_are_certain() -> None:
    pieces = [
        "Hi",
        " <",
        "b> ",
        "<tool_",
        "call>",
        '{"name": "now", "argu',
        'ments": {"a"',
        ': "x<',
        '/tool_call>"}',
        "}",
        "</tool_call>",
    ]
    assert stream(HERMES, pieces) == [
        [ContentDelta("Hi")],
        [],  # "<" may begin a call
        [ContentDelta(" <b>")],
        [],
        [],
        [ToolCallBegin(0, "now")],
        [ToolArgumentsDelta(0, '{"a"')],
        [ToolArgumentsDelta(0, ': "x')],
        [ToolArgumentsDelta(0, '</tool_call>"}')],
        [ToolCallEnd(0)],
        [],
        [],
    ]


def test_a_string_in_a_tag_is_written_as_it_comes_and_other_values_when_they_are_whole() -> None:
    pieces = [
        "<tool_call>\n<function=write-file>", "\n<parameter=text>\n", "a \"b", "\nc</par", "am\n</parameter>\n",
        "<parameter=force>", "tr", "ue</parameter>\n", "</function>\n</tool_call>",
    ]  # fmt: skip
    assert stream(family("qwen3_coder"), pieces) == [
        [ToolCallBegin(0, "write-file")],
        [ToolArgumentsDelta(0, '{"text": "')],
        [ToolArgumentsDelta(0, 'a \\"b')],
        [ToolArgumentsDelta(0, "\\nc")],
        [ToolArgumentsDelta(0, '</param"')],
        [ToolArgumentsDelta(0, ', "force": ')],
        [],
        [ToolArgumentsDelta(0, "true")],
        [ToolArgumentsDelta(0, "}"), ToolCallEnd(0)],
        [],
    ]


def test_reasoning_comes_without_the_white_space_around_it() -> None:
    assert stream(HERMES, ["\n\n", "a \n", "b", "\n", "</think>\n\nc"], prompt="<|im_start|>assistant\n<think>\n") == [
        [],
        [ReasoningDelta("a")],
        [ReasoningDelta(" \nb")],
        [],
        [ContentDelta("c")],
        [],
    ]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<|im_start|>assistant\n<think>\n", Message("a", "b")),
        ("<|im_start|>assistant\n", Message("a", "b")),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Message(None, "a</think>b")),
        ("<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n", Message("a", "b")),
        ("USER: hi ASSISTANT: <think>\n", Message("a", "b")),  # a prompt of another shape
        ("USER: <think> hi ASSISTANT: ", Message("a", "b")),
    ],
)
def test_the_prompt_says_where_the_response_begins(prompt: str, expected: Message) -> None:
    assert parse(HERMES, "a</think>b", prompt=prompt) == expected


def test_a_response_goes_on_with_what_the_prompt_began() -> None:
    assert parse(HERMES, " world", prompt="<|im_start|>assistant\nHello") == Message(None, " world")
    called = parse(HERMES, ' "x"}}</tool_call>', prompt='<|im_start|>assistant\n<tool_call>{"name": "now", "arguments": {"a":')
    assert called.tool_calls == (ToolCall("now", '{"a": "x"}'),)


def test_the_parser_knows_whether_it_is_in_reasoning() -> None:
    parser = ChatParser(HERMES, prompt="<|im_start|>assistant\n<think>\n")
    states = [parser.in_reasoning]
    for piece in ("a", "</think>", "b"):
        parser.feed(piece)
        states.append(parser.in_reasoning)
    assert states == [True, True, False, False]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": tru}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "now", "arguments": "no object"}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        "<tool_call>now()</tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>",
        '<tool_call>{"name": "now", "arguments": {"a": 1}',
        '<tool_call>{"name": "now", "arguments": ' + '{"a":' * 5000 + "1" + "}" * 5000 + "}</tool_call>",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    assert parse(HERMES, f"a {text} b", tools=TOOL_SET) == Message(None, f"a {text} b")


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("qwen3_coder", "<tool_call>\n<function=nobody>\n</function>\n</tool_call>"),
        ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a>1"),
        ("olmo3", "<function_calls>\nnow('x')\n</function_calls>"),
        ("olmo3", "<function_calls>\nnow(a='\\xq')\n</function_calls>"),
        ("olmo3", "<function_calls>\n1 + 1\n</function_calls>"),
        ("gemma4", "<|tool_call>call:now{a:b c}<tool_call|>"),
        ("gemma4", "<|tool_call>call:now{a:1} and more<tool_call|>"),
        ("llama3_json", '{"name": "now"'),
    ],
)
def test_what_is_no_call_in_other_families_is_content(parser: str, text: str) -> None:
    message = parse(family(parser), text, tools=TOOL_SET)
    assert message.content is not None
    assert message.content.endswith(text[-12:])
    assert all(call.complete for call in message.tool_calls)


def test_a_call_that_turns_out_to_be_none_is_taken_back() -> None:
    deltas = [
        delta for part in stream(HERMES, ['<tool_call>{"name": "now", "arguments": {"a": x}}', "</tool_call>"]) for delta in part
    ]
    assert [type(delta) for delta in deltas] == [ToolCallBegin, ToolArgumentsDelta, ToolCallFailed, ContentDelta]
    assert collect(deltas) == Message(None, '<tool_call>{"name": "now", "arguments": {"a": x}}</tool_call>')


def test_calls_before_a_broken_one_stay() -> None:
    text = '<tool_call>{"name": "now"}</tool_call>\n<tool_call>{"name": "now", "arguments": {1}}</tool_call>'
    message = parse(HERMES, text, tools=TOOL_SET)
    assert message.tool_calls == (ToolCall("now", "{}"),)
    assert message.content == '<tool_call>{"name": "now", "arguments": {1}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "now", "arguments": {"a": "x', [ToolCall("now", '{"a": "x', complete=False)]),
        ('{"name": "now", "arguments": ', [ToolCall("now", "", complete=False)]),
        ('{"name": "now", "arguments": {"a": 1}}\n</tool', [ToolCall("now", '{"a": 1}')]),
    ],
)
def test_a_call_that_is_cut_off_is_not_complete(text: str, expected: list[ToolCall]) -> None:
    deltas = [delta for part in stream(HERMES, [f"<tool_call>{text}"], stopped=False) for delta in part]
    message = collect(deltas)
    assert message.tool_calls == tuple(expected)
    assert message.content is None
    assert any(isinstance(delta, ToolCallEnd) for delta in deltas) == expected[0].complete


def test_a_tag_that_is_cut_off_is_not_complete() -> None:
    text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar"
    for cut in ("", "is\n</parameter>\n", "is\n</parameter>\n</func"):
        (call,) = parse(family("qwen3_coder"), text + cut, tools=TOOL_SET, stopped=False).tool_calls
        assert not call.complete
        assert call.arguments.startswith('{"city": "Par')


def test_text_that_is_cut_off_in_a_marker_is_not_lost() -> None:
    assert parse(HERMES, "a <tool_c", stopped=False) == Message(None, "a <tool_c")
    assert parse(HERMES, "<think>a </thi", stopped=False) == Message("a </thi")
    assert parse(HERMES, '<tool_call>{"na', tools=TOOL_SET, stopped=False) == Message(None, '<tool_call>{"na')


def test_without_tools_the_text_of_calls_is_content() -> None:
    text = '<think>a</think>b <tool_call>{"name": "now"}</tool_call>'
    assert parse(HERMES, text, tools=()) == Message("a", 'b <tool_call>{"name": "now"}</tool_call>')
    section = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    assert parse(family("deepseek_v31"), section, tools=()) == Message(None, section)


def test_with_tools_unknown_any_name_is_a_calls_and_values_are_what_they_look_like() -> None:
    text = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\n</parameter>\n</function>\n</tool_call>"
    assert parse(family("qwen3_coder"), text).tool_calls == (ToolCall("f", '{"a": 1, "b": "x"}'),)


def test_values_in_tags_are_of_the_types_that_the_schema_says() -> None:
    kinds: dict[str, Any] = {
        "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
        "sn": {"type": ["string", "null"]}, "a": {"anyOf": [{"type": "array"}, {"type": "null"}]}, "e": {"enum": [1, "one"]},
        "z": {"type": "number"},
    }  # fmt: skip
    tool = Tool("f", {"type": "object", "properties": kinds})
    values = {
        "s": "007",
        "i": "3.0",
        "n": "1.50",
        "b": "False",
        "sn": "null",
        "a": "['x', 1]",
        "e": "one",
        "z": "1e999",
        "?": "no",
    }
    tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    (call,) = parse(family("qwen3_coder"), f"<tool_call>\n<function=f>\n{tags}</function>\n</tool_call>", tools=[tool]).tool_calls
    assert call.arguments == (
        '{"s": "007", "i": 3, "n": 1.50, "b": false, "sn": null, "a": ["x", 1], "e": "one", "z": 1e999, "?": "no"}'
    )


def test_long_responses_are_read_to_the_end() -> None:
    filler = "word < " * 3000
    text = f'<think>{filler}</think>{filler}<tool_call>{{"name": "now", "arguments": {{"a": "{filler}"}}}}</tool_call>'
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    message = collect(delta for part in stream(HERMES, pieces) for delta in part)
    assert message == Message(filler.strip(), filler.strip(), (ToolCall("now", f'{{"a": "{filler}"}}'),))


def described(tool_calls: dict[str, Any], **more: Any) -> ResponseTemplate:
    return load_template({"start_anchor": "A:", "fields": {"tool_calls": tool_calls, **more}})


NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}


@pytest.mark.parametrize(
    ("tool_calls", "text", "expected"),
    [
        (  # lines of keys and values
            {"open_pattern": r"<(?P<name>\w+)>", "close": "</>", "content": "kv-lines", "transform": NAMED,
             "content_args": {"value_parser": {"name": "int"}, "kv_sep": "="}},
            "<f>a = 1\n\nb=2</>",
            [ToolCall("f", '{"a": 1, "b": 2}')],
        ),
        (  # keys deeper inside
            {"open": "<c>", "close": "</c>", "content": "json",
             "transform": {"function": {"name": "{content.fn.name}", "arguments": "{content.fn.args}"}, "id": "{content.ref}"}},
            '<c>{"fn": {"name": "f", "args": {"a": 1}}, "ref": "x"}</c>',
            [ToolCall("f", '{"a": 1}', "x")],
        ),
        (  # tags of which several have one name
            {"open_pattern": r"<(?P<name>\w+)>", "close": "</>", "content": "xml-inline", "transform": NAMED,
             "content_args": {"tag_pattern": r"\[(?P<key>\w)\](?P<value>.*?);", "merge_duplicates": True}},
            "<f>[a]1;[b]2;[a]3;</>",
            [ToolCall("f", '{"a": ["1", "3"], "b": "2"}')],
        ),
        (  # elements whose keys have names of their own
            {"open": "<c>", "close": ["</c>", "</cc>"], "content": "json", "transform_each": True,
             "transform": {"function": {"name": "{tool_name}", "arguments": "{parameters}"}}},
            '<c>[{"tool_name": "f", "parameters": {}}, {"parameters": {"a": 1}, "tool_name": "g"}]</cc>',
            [ToolCall("f", "{}"), ToolCall("g", '{"a": 1}')],
        ),
    ],
)  # fmt: skip
def test_templates_of_a_checkpoints_own(tool_calls: dict[str, Any], text: str, expected: list[ToolCall]) -> None:
    template = described({**tool_calls, "repeats": True}, content={})
    for pieces in ([text], list(text)):
        parser = ChatParser(template)
        deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
        assert collect(deltas) == Message(None, None, tuple(expected))


def test_text_between_marked_content_is_left_out_and_regions_are_joined() -> None:
    content = {"open": "<say>", "close": "</say>", "repeats": True, "join": " / "}
    template = load_template({"start_anchor": "A:", "fields": {"content": content, "thinking": {"open": "<t>", "close": "</t>"}}})
    assert parse(template, "x<say> a </say>y<t>b</t><say>\nc</say>z") == Message("b", "a / c")


def test_white_space_stays_where_the_template_says_so() -> None:
    template = load_template({"start_anchor": "A:", "fields": {"content": {"content_args": {"strip": False}}}})
    assert parse(template, "\n a \n") == Message(None, "\n a \n")


def test_empty_markers_come_to_an_end() -> None:
    fields = {"thinking": {"open_pattern": "(?=x)", "close_pattern": "(?=x)"}, "content": {"close_pattern": "$"}}
    template = load_template({"start_anchor": "A:", "fields": fields})
    message = parse(template, "axxb")
    assert f"{message.content}{message.reasoning or ''}".count("x") + len("ab") == 4


@pytest.mark.parametrize("thinking", ["", "<think>so</think>"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_markers_inside_content_that_has_a_form_are_text(thinking: str, size: int) -> None:
    content = '{"k": "a<think>b</think><tool_call>{}</tool_call>c"}'
    text = f"{thinking}{content}"
    parser = ChatParser(HERMES, tools=TOOL_SET, has_form=True)
    deltas = [delta for at in range(0, len(text), size) for delta in parser.feed(text[at : at + size])]
    message = collect([*deltas, *parser.finish()])
    assert (message.content, message.reasoning or "") == (content, "so" if thinking else "")
    assert not message.tool_calls


def test_a_call_comes_instead_of_content_that_has_a_form() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "<think>"}}</tool_call>'
    parser = ChatParser(HERMES, has_form=True)
    (call,) = collect([*parser.feed(text), *parser.finish()]).tool_calls
    assert json.loads(call.arguments) == {"city": "<think>"}
