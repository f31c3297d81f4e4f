"""Responses in which a model left something out or broke a call: what is unambiguous is recovered, the rest is content."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from jaxserve.chat_parsing import (
    ChatParser,
    ContentDelta,
    ContentWasReasoning,
    Delta,
    Message,
    ReasoningDelta,
    Tool,
    ToolCallFailed,
    collect,
    find_template,
    settled,
)

SEARCH = Tool(
    "search",
    {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}, "zip": {"type": "string"}},
        "required": ["query"],
    },
)
SHELL = Tool("shell", {"type": "object", "properties": {"line": {"type": "string"}}, "required": ["line"]})
TOOLS = (SEARCH, SHELL)


@dataclass(frozen=True)
class Case:
    parser: str
    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    content: str | None = None
    reasoning: str | None = None
    reasoning_parser: str = "none"
    prompt: str = ""
    tools: tuple[Tool, ...] | None = TOOLS


def read(case: Case, size: int) -> Message:
    template = find_template("", tool_call_parser=case.parser, reasoning_parser=case.reasoning_parser)
    assert template is not None
    parser = ChatParser(template, prompt=case.prompt, tools=case.tools)
    pieces = (case.text[at : at + size] for at in range(0, len(case.text), size))
    return collect([*(delta for piece in pieces for delta in parser.feed(piece)), *parser.finish()])


def check(case: Case) -> None:
    for size in (1, 3, 1000):
        message = read(case, size)
        calls = tuple((call.name, json.loads(call.arguments)) for call in message.tool_calls)
        assert (calls, message.content, message.reasoning) == (case.calls, case.content, case.reasoning), f"pieces of {size}"


def search(**arguments: Any) -> tuple[str, dict[str, Any]]:
    return "search", arguments


def shell(line: str) -> tuple[str, dict[str, Any]]:
    return "shell", {"line": line}


HARMONY: dict[str, Any] = {"parser": "openai", "reasoning_parser": "openai_gptoss", "prompt": "<|start|>assistant"}
THOUGHT = "<|channel|>analysis<|message|>Why.<|end|><|start|>assistant"


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>final <|message|>",
        "<|channel|> final\n<|message|>",
        "<|channel|>final<|constrain|> json <|message|>",
        "<|channel|>final <|constrain|>Reply<|message|>",
        "<|channel|>commentary <|message|>",
        "<|channel|>answer<|message|>",
        " <|channel|>final<|message|>",
        "<|message|>",
        "<|channel|>commentary to=browser.open code<|message|>",
    ],
)
def test_content_of_channels_with_any_header(header: str) -> None:
    check(Case(text=f"{THOUGHT}{header}So.", content="So.", reasoning="Why.", **HARMONY))


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<|channel|>analysis <|message|>Why.<|end|><|start|>assistant<|channel|>final<|message|>So.", "So.", "Why."),
        ("<|channel|>analysis<|message|>Why.<|end|>So.", "So.", "Why."),
        ("<|channel|>analysis<|message|>Why.<|channel|>final<|message|>So.", "So.", "Why."),
        ("<|channel|>final So.", "<|channel|>final So.", None),
        ("<|channel|>analysis<|message|>Why.<|end|><|start|>assistant", None, "Why."),
    ],
)
def test_content_of_channels_with_markers_left_out(text: str, content: str | None, reasoning: str | None) -> None:
    check(Case(text=text, content=content, reasoning=reasoning, **HARMONY))


def test_calls_of_channels_with_blanks() -> None:
    for header in (
        "<|channel|>commentary to=functions.shell <|constrain|> json <|message|>",
        "<|channel|> analysis to=functions.shell code<|message|>",
    ):
        check(Case(text=f'{THOUGHT}{header}{{"line": "ls"}}<|call|>', calls=(shell("ls"),), reasoning="Why.", **HARMONY))


THINKING = {
    "deepseek_r1": ("<think>", "</think>"),
    "qwen3": ("<think>", "</think>"),
    "cohere_command3": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma4": ("<|channel>thought\n", "<channel|>"),
    "mistral": ("[THINK]", "[/THINK]"),
}


@pytest.mark.parametrize("name", THINKING)
def test_thinking_with_a_marker_left_out_or_repeated(name: str) -> None:
    begin, end = THINKING[name]
    for text, content, reasoning, prompt in (
        (f"Why.{end}So.", "So.", "Why.", ""),
        (f"\n Why. {end}\n\nSo.{end}", f"So.{end}", "Why.", ""),
        (f"{end}So.", "So.", None, ""),
        (f"{begin}Why.{end}So.", "So.", "Why.", begin),
        (f"\n{begin}\n{begin}Why.{end}So.", "So.", "Why.", f"{begin}\n"),
        (f"Why {begin}.{end}So.", "So.", f"Why {begin}.", begin),
        (f"Write `{end}` last.", f"Write `{end}` last.", None, ""),
        (f"{begin}Why.{end}So.{end}", f"So.{end}", "Why.", ""),
    ):
        check(Case("none", text, content=content, reasoning=reasoning, reasoning_parser=name, prompt=prompt))


def test_words_that_end_thinking_end_none_that_nothing_began() -> None:
    text = "Yes. Here is my response: no."
    check(Case("none", text, content=text, reasoning_parser="granite"))


def test_the_end_of_thinking_after_a_call_is_text() -> None:
    text = '<tool_call>{"name": "shell", "arguments": {"line": "ls"}}</tool_call>a</think>b'
    check(Case("hermes", text, (shell("ls"),), "a</think>b", reasoning_parser="qwen3"))


def test_reasoning_that_is_not_shown_is_left_out() -> None:
    parts: list[Delta] = [ContentDelta("Why"), ContentWasReasoning(is_shown=False), ContentDelta("So")]
    assert collect(parts) == Message(None, "So")


def test_calls_after_thinking_without_a_beginning() -> None:
    for parser, call in (
        ("hermes", '<tool_call>{"name": "shell", "arguments": {"line": "ls"}}</tool_call>'),
        ("llama3_json", '{"name": "shell", "parameters": {"line": "ls"}}'),
        ("pythonic", "[shell(line='ls')]"),
    ):
        check(Case(parser, f"Why.</think>{call}", (shell("ls"),), reasoning="Why.", reasoning_parser="deepseek_r1"))


def test_content_that_was_sent_is_corrected() -> None:
    template = find_template("", tool_call_parser="none", reasoning_parser="qwen3")
    assert template is not None
    parser = ChatParser(template)
    assert parser.feed("Why") == [ContentDelta("Why")]
    deltas = parser.feed("?</think>So")
    assert deltas == [ContentWasReasoning(), ReasoningDelta("?"), ContentDelta("So")]
    assert settled([ContentDelta("Why"), *deltas]) == [ReasoningDelta("Why"), ReasoningDelta("?"), ContentDelta("So")]


def test_thinking_that_stays_in_the_content() -> None:
    content = "<think>Why.\n</think>\n\nSo."
    for text, prompt in ((content.removeprefix("<think>"), "<think>\n"), (content, "")):
        check(Case("none", text, content=content, reasoning_parser="minimax_m2_append_think", prompt=prompt))


def parameter(key: str, value: object, end: str = "</parameter>") -> str:
    return f"<parameter={key}>\n{value}\n{end}\n"


def qwen(body: str) -> str:
    return f"<tool_call>\n<function=search>\n{body}</function>\n</tool_call>"


ZIP = '<｜DSML｜parameter name="zip" string="true">3</｜DSML｜parameter>'


def dsml(body: str) -> str:
    return f'<｜DSML｜invoke name="search">\n{body}</｜DSML｜invoke>'


QWEN: dict[str, tuple[str, tuple[Any, ...], str | None]] = {
    "no marker around": ("<function=search>\n" + parameter("query", "a") + "</function>", (search(query="a"),), None),
    "text around": (
        "Look: <function=shell>\n" + parameter("line", "ls") + "</function>\nDone.",
        (shell("ls"),),
        "Look: \nDone.",
    ),
    "two, the marker left out of one": (
        "<function=shell>" + parameter("line", "ls") + "</function>" + qwen(parameter("query", "a")),
        (shell("ls"), search(query="a")),
        None,
    ),
    "no end of a value": (qwen("<parameter=query>\na b\n" + parameter("limit", 3)), (search(query="a b", limit=3),), None),
    "no end of a number": (qwen("<parameter=limit>3\n" + parameter("query", "a")), (search(limit=3, query="a"),), None),
    "no end of the last value": (qwen("<parameter=query>\na b\n"), (search(query="a b"),), None),
    "no end of the call": (
        "<tool_call>\n<function=shell>\n" + parameter("line", "ls") + "</tool_call>" + qwen(parameter("query", "a")),
        (shell("ls"), search(query="a")),
        None,
    ),
    "no end of the call before the next": (
        "<tool_call>\n<function=shell>\n" + parameter("line", "ls") + qwen(parameter("query", "a")),
        (shell("ls"), search(query="a")),
        None,
    ),
    "a value with the tag of no parameter": (
        qwen(parameter("query", "<parameter=other>\n</function>")),
        (search(query="<parameter=other>\n</function>"),),
        None,
    ),
    "a value with the tag of a parameter that is there": (
        qwen(parameter("limit", 1) + parameter("query", "x\n<parameter=limit>")),
        (search(limit=1, query="x\n<parameter=limit>"),),
        None,
    ),
    "no tool": ("<function=other>\n</function>", (), "<function=other>\n</function>"),
}


@pytest.mark.parametrize("name", QWEN)
def test_calls_in_tags_with_markers_left_out(name: str) -> None:
    text, calls, content = QWEN[name]
    check(Case("qwen3_coder", text, calls, content))


@pytest.mark.parametrize(
    ("parser", "text", "calls"),
    [
        ("seed_oss", "<function=shell><parameter=line>ls</parameter></function>", (shell("ls"),)),
        (
            "seed_oss",
            "<seed:tool_call><function=search>\n<parameter=query>a\n<parameter=limit>3</parameter></function></seed:tool_call>",
            (search(query="a", limit=3),),
        ),
        (
            "minimax_m2",
            '<invoke name="search">\n<parameter name="query">a\n<parameter name="limit">3</parameter>\n</minimax:tool_call>',
            (search(query="a", limit=3),),
        ),
        (
            "deepseek_v32",
            dsml(ZIP.replace("3</｜DSML｜parameter>", "3\n") + ZIP.replace("zip", "query")),
            (search(query="3", zip="3"),),
        ),
        (
            "glm47",
            "<tool_call>search<arg_key>query</arg_key><arg_value>a<arg_key>limit</arg_key><arg_value>3</arg_value></tool_call>",
            (search(query="a", limit=3),),
        ),
    ],
)
def test_other_tags_with_markers_left_out(parser: str, text: str, calls: Any) -> None:
    check(Case(parser, text, calls))


def test_with_tools_unknown_a_tag_that_begins_a_line_ends_a_value() -> None:
    broken = qwen("<parameter=query>\na\n" + parameter("limit", 3))
    check(Case("qwen3_coder", broken, (search(query="a", limit=3),), tools=None))
    whole = qwen("<parameter=query>a <parameter=limit> b</parameter>")
    check(Case("qwen3_coder", whole, (search(query="a <parameter=limit> b"),), tools=None))


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        ('{"query": "a", "limit": 3}', {"query": "a", "limit": 3}),
        ("{}", {}),
        ("all", {"arguments": "all"}),
    ],
)
def test_an_object_of_all_arguments_in_one_tag(value: str, arguments: dict[str, Any]) -> None:
    for parser, text in (
        ("qwen3_coder", qwen(parameter("arguments", value))),
        ("deepseek_v32", dsml(f'<｜DSML｜parameter name="arguments" string="false">{value}</｜DSML｜parameter>')),
    ):
        check(Case(parser, text, (("search", arguments),)))


@pytest.mark.parametrize("parser", ["qwen3_coder", "seed_oss"])
def test_an_object_instead_of_tags(parser: str) -> None:
    check(Case(parser, '<function=search>\n{"query": "a"}\n</function>', (search(query="a"),)))
    check(Case(parser, "<function=search>\na\n</function>", content="<function=search>\na\n</function>"))


def test_a_parameter_of_that_name_is_no_object_of_all_arguments() -> None:
    tool = Tool("run", {"type": "object", "properties": {"arguments": {"type": "object"}}})
    text = '<function=run>\n<parameter=arguments>{"a": 1}</parameter>\n</function>'
    check(Case("qwen3_coder", text, (("run", {"arguments": {"a": 1}}),), tools=(tool,)))


BARE = '{"name": "shell", "parameters": {"line": "ls"}}'


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (f"I look: {BARE} Fine?", (shell("ls"),), "I look:  Fine?"),
        (f"First {BARE}, then {BARE}; {BARE} done {{", (shell("ls"),) * 3, "First , then  done {"),
        (f"Both: [{BARE}, {BARE}].", (shell("ls"),) * 2, "Both: ."),
        (f"```json\n{BARE}\n```", (shell("ls"),), "```json\n\n```"),
        ('Like {"name": "Ada", "age": 3}.', (), 'Like {"name": "Ada", "age": 3}.'),
        ('Like {"name": "shell", "pid": 3}.', (), 'Like {"name": "shell", "pid": 3}.'),
        (f'Like {{"call": {BARE}}}.', (shell("ls"),), 'Like {"call": }.'),
    ],
)
def test_json_of_a_tool_among_text(text: str, calls: Any, content: str) -> None:
    check(Case("llama3_json", text, calls, content))


def test_json_among_text_is_a_call_only_in_families_that_write_it_so() -> None:
    for parser in ("hermes", "mistral", "qwen3_coder", "deepseek_v31", "gemma4"):
        check(Case(parser, f"I look: {BARE}", content=f"I look: {BARE}"))


def test_with_tools_unknown_json_without_arguments_is_no_call() -> None:
    check(Case("llama3_json", '{"name": "Ada"}', content='{"name": "Ada"}', tools=None))
    check(Case("llama3_json", f"So: {BARE}", (shell("ls"),), "So:", tools=None))


LISTED = '[{"name": "shell", "arguments": {"line": "ls"}}, {"name": "search", "arguments": {"query": "a"}}]'


@pytest.mark.parametrize(
    ("parser", "text", "content"),
    [
        ("granite", LISTED, None),
        ("granite", f"\n{LISTED}", None),
        ("granite", f"<|tool_call|>{LISTED} Done.", "Done."),
        ("xlam", LISTED, None),
        ("xlam", f"Look.\n```json\n{LISTED}\n``` Done.", "Look.\n Done."),
        ("xlam", f"Look. <tool_call>{LISTED}</tool_call>", "Look."),
        ("xlam", f"[TOOL_CALLS]{LISTED}", None),
        ("xlam", f"<think>Hm</think>{LISTED}", "<think>Hm</think>"),
    ],
)
def test_lists_of_calls_without_markers(parser: str, text: str, content: str | None) -> None:
    check(Case(parser, text, (shell("ls"), search(query="a")), content))


def test_a_list_after_thinking() -> None:
    text = f"Here is my thought process: Hm. Here is my response: {LISTED}"
    check(Case("granite", text, (shell("ls"), search(query="a")), reasoning="Hm.", reasoning_parser="granite"))


@pytest.mark.parametrize("text", ['[{"name": "Ada", "arguments": {}}]', '[{"name": "shell", "age": 3}]', "[1, 2]"])
def test_lists_that_are_no_calls(text: str) -> None:
    for parser in ("granite", "xlam"):
        check(Case(parser, text, content=text))


GOOD = '{"name": "shell", "arguments": {"line": "ls"}}'


@pytest.mark.parametrize(
    ("parser", "text", "content"),
    [
        ("granite", f'<|tool_call|>[{{"name": "other", "arguments": {{}}}}, {GOOD}]', '{"name": "other", "arguments": {}}'),
        (
            "nemotron_json",
            f'<TOOLCALL>[{{"name": "shell", "arguments": {{1}}}}, {GOOD}]</TOOLCALL>',
            '{"name": "shell", "arguments": {1}}',
        ),
        ("hermes", f'<tool_call>{{"name": 7}}<tool_call>{GOOD}</tool_call>', '<tool_call>{"name": 7}'),
        (
            "hermes",
            f'<tool_call>{{"name": "shell", "arguments": {{"line": "ls}}</tool_call>\n<tool_call>{GOOD}</tool_call>',
            '<tool_call>{"name": "shell", "arguments": {"line": "ls}</tool_call>',
        ),
        ("hermes", f"<tool_call>{GOOD}<tool_call>{GOOD}", None),
    ],
)
def test_a_broken_call_before_or_after_a_good_one(parser: str, text: str, content: str | None) -> None:
    message = read(Case(parser, text), 1000)
    assert {(call.name, call.arguments) for call in message.tool_calls} == {("shell", '{"line": "ls"}')}
    check(Case(parser, text, (shell("ls"),) * len(message.tool_calls), content))


@pytest.mark.parametrize(
    ("written", "query"),
    [
        ("{'query': 'it\\'s', 'limit': None}", "it's"),
        ('{"query": "say "hi" now", "limit": null}', 'say "hi" now'),
        ('{"query": "a\nb", "limit": null}', "a\nb"),
    ],
)
def test_objects_that_are_not_quite_json(written: str, query: str) -> None:
    for parser, text in (
        ("hermes", f'<tool_call>{{"name": "search", "arguments": {written}}}</tool_call>'),
        ("granite", f"<|tool_call|>[{{'name': 'search', 'arguments': {written}}}]"),
        ("deepseek_v31", f"<｜tool▁call▁begin｜>search<｜tool▁sep｜>{written}<｜tool▁call▁end｜>"),
        ("kimi_k2", f"<|tool_call_begin|>0<|tool_call_argument_begin|>{written}<|tool_calls_section_end|>"),
    ):
        check(Case(parser, text, (search(query=query, limit=None),)))


def test_ids_that_are_numbers() -> None:
    text = '<|START_ACTION|>[{"tool_call_id": 4, "tool_name": "shell", "parameters": {"line": "ls"}}]<|END_ACTION|>'
    message = read(Case("cohere_command3", text), 1)
    assert [(call.name, call.id) for call in message.tool_calls] == [("shell", "4")]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [('{"query": "a"}', ["search"]), ('{"line": "ls"}', ["shell"]), ('{"limit": 3}', []), ('{"other": 1}', [])],
)
def test_a_counter_for_a_name_stands_for_the_one_tool_that_fits(arguments: str, names: list[str]) -> None:
    text = f"<|tool_call_begin|>0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
    for size in (1, 1000):
        message = read(Case("kimi_k2", text), size)
        assert [(call.name, call.id) for call in message.tool_calls] == [(name, "0") for name in names]
        assert message.content == (None if names else text)


QUOTED = '<|"|>'


@pytest.mark.parametrize(
    "text",
    [
        f"<|tool_call>:call:shell{{line:{QUOTED}ls{QUOTED}}}<tool_call|>",
        f"<|tool_call> call:shell{{line:{QUOTED}ls{QUOTED}}}",
        f"<|channel>thought\nWhy.<channel|>\ncall:shell{{line:{QUOTED}ls{QUOTED}}}",
        f"Why.<channel|>call:shell{{line:{QUOTED}ls{QUOTED}}}<tool_call|>",
    ],
)
def test_calls_after_a_marker_that_is_not_quite_right(text: str) -> None:
    reasoning = "Why." if "Why" in text else None
    check(Case("gemma4", text, (shell("ls"),), reasoning=reasoning, reasoning_parser="gemma4"))


PYTHON: dict[str, tuple[str, tuple[Any, ...], str | None]] = {
    "sets and tuples": ("f(a={1, 2}, b=('x',), c={})", (("f", {"a": [1, 2], "b": ["x"], "c": {}}),), None),
    "integers": ("f(a=007, b=-01, c=1_000, d=0x1F)", (("f", {"a": 7, "b": -1, "c": 1000, "d": 31}),), None),
    "numbers": ("f(a=.5, b=+2, c=1.)", (("f", {"a": 0.5, "b": 2, "c": 1.0}),), None),
    "quotes": ("f(a='it's 'so', he said', b=1)", (("f", {"a": "it's 'so', he said", "b": 1}),), None),
    "double quotes": ('f(a="say "hi" (now)")', (("f", {"a": 'say "hi" (now)'}),), None),
    "an odd quote": ("f(a='it's')", (("f", {"a": "it's"}),), None),
    "quotes in a list": ("f(a=['it's', 'b'])", (("f", {"a": ["it's", "b"]}),), None),
    "three quotes": ("f(a='''it's\n'so'\n''')", (("f", {"a": "it's\n'so'\n"}),), None),
    "backslashes": (r"f(a='\d+\n\'', b={1})", (("f", {"a": "\\d+\n'", "b": [1]}),), None),
    "a broken call": ("g(a=b'x'), f(a=1)", (("f", {"a": 1}),), "g(a=b'x')"),
    "a broken call between": ("f(a=1), g('x, f(a=2)'), f(a=3)", (("f", {"a": 1}), ("f", {"a": 3})), "g('x, f(a=2)')"),
    "a broken call at the end": ("f(a=1), g(a=b'x')", (("f", {"a": 1}),), "g(a=b'x')"),
    "calls in a broken call": ("g(f(a=1))", (), "g(f(a=1))"),
    "words": ("f(a=b)", (), "f(a=b)"),
}  # fmt: skip


@pytest.mark.parametrize("name", PYTHON)
def test_calls_in_python_as_models_write_it(name: str) -> None:
    text, calls, content = PYTHON[name]
    for parser, whole in (
        ("lfm2", f"<|tool_call_start|>[{text}]<|tool_call_end|>"),
        ("pythonic", f"[{text}]"),
        ("olmo3", f"<function_calls>\n{text}\n</function_calls>"),
    ):
        check(Case(parser, whole, calls, content if calls else whole, tools=None))


def test_objects_instead_of_python() -> None:
    for text in (f"<|tool_call_start|>[{GOOD}]<|tool_call_end|>", f"<|tool_call_start|>{GOOD}<|tool_call_end|>"):
        check(Case("lfm2", text, (shell("ls"),)))
    check(Case("lfm2", "<|tool_call_start|>{}<|tool_call_end|>", content="<|tool_call_start|>{}<|tool_call_end|>"))


def test_markers_after_a_string_that_does_not_end_are_markers() -> None:
    text = "<|tool_call_start|>[shell(line='it's')]<|tool_call_end|>Done."
    check(Case("lfm2", text, (shell("it's"),), "Done."))


def test_numbers_of_parameters_that_are_strings_stay_as_they_are_written() -> None:
    text = "<|tool_call_start|>[search(query='a', zip=02134)]<|tool_call_end|>"
    check(Case("lfm2", text, (search(query="a", zip="02134"),)))


@pytest.mark.parametrize(
    ("parser", "reasoning_parser"),
    [("hermes", "qwen3"), ("qwen3_coder", "qwen3"), ("llama3_json", "qwen3"), ("xlam", "none"), ("granite", "granite")],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_nothing_is_recovered_inside_content_that_has_a_form(parser: str, reasoning_parser: str, size: int) -> None:
    text = json.dumps({"a": "</think><function=shell></function>", "b": [json.loads(GOOD), json.loads(BARE)]})
    template = find_template("", tool_call_parser=parser, reasoning_parser=reasoning_parser)
    assert template is not None
    reader = ChatParser(template, tools=TOOLS, has_form=True)
    deltas = [delta for at in range(0, len(text), size) for delta in reader.feed(text[at : at + size])]
    assert collect([*deltas, *reader.finish()]) == Message(content=text)


def test_text_after_a_list_is_content() -> None:
    check(Case("pythonic", "[shell(line='ls')] Done.", (shell("ls"),), "Done."))


def test_a_call_that_was_streamed_is_taken_back_before_it_is_recovered() -> None:
    template = find_template("", tool_call_parser="lfm2", reasoning_parser="none")
    assert template is not None
    parser = ChatParser(template, tools=TOOLS)
    deltas = [*parser.feed("<|tool_call_start|>[search(query='a', limit=07)]"), *parser.feed("<|tool_call_end|>")]
    assert any(isinstance(delta, ToolCallFailed) for delta in deltas)
    (call,) = collect(deltas).tool_calls
    assert json.loads(call.arguments) == {"query": "a", "limit": 7}
