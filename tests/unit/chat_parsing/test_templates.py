"""Templates: what is refused, what they say of themselves, and which one a checkpoint's responses are read with."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.chat_parsing import (
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
    find_template,
    load_template,
    parse,
    read_template_file,
    read_tools,
)
from jaxserve.chat_parsing.families import FAMILIES
from jaxserve.chat_parsing.patterns import leading_text, shortest_text
from jaxserve.errors import CheckpointError, ConfigError

PLAIN: dict[str, Any] = {"start_anchor": "A:", "fields": {"content": {}}}
CALLS: dict[str, Any] = {"open": "<c>", "close": "</c>", "content": "json", "transform": {"function": "{content}"}}


def with_field(name: str, field: Any) -> dict[str, Any]:
    return {**PLAIN, "fields": {"content": {}, name: field}}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ([], "must be an object, not list"),
        ({**PLAIN, "version": 2}, "version 2"),
        ({**PLAIN, "begin": "x"}, "unknown keys: begin"),
        ({"fields": {"content": {}}}, "needs start_anchor"),
        ({"start_anchor": "A:", "fields": {}}, "at least one field"),
        ({**PLAIN, "start_anchor": ["A", ""]}, "start_anchor must be"),
        (with_field("citations", {"open": "<", "close": ">"}), "has citations"),
        (with_field("thinking", {}), "at most one field may do without open"),
        ({"start_anchor": "A:", "fields": {"thinking": {"close": ">"}}}, "only content may do without"),
        (with_field("thinking", "<think>"), "fields.thinking must be an object"),
        (with_field("thinking", {"open": "<", "colour": 1}), "unknown keys: colour"),
        (with_field("thinking", {"open": "<", "open_pattern": "<"}), "both open and open_pattern"),
        (with_field("thinking", {"open_pattern": "("}), "open_pattern is not a regular expression"),
        (with_field("thinking", {"open": "<", "content": "json"}), "so that it can be streamed"),
        (with_field("thinking", {"open": "<", "join": 1}), "join must be a string"),
        (with_field("thinking", {"open": "<", "writes": {"begin": "<"}}), "writes may have"),
        (with_field("tool_calls", {**CALLS, "content": "text"}), "content is 'text'"),
        (with_field("tool_calls", {**CALLS, "transform": None}), "transform must have a function"),
        (with_field("tool_calls", {**CALLS, "transform": {"function": {"name": "f", "arguments": "{content}"}}}), "placeholders"),
        (with_field("tool_calls", {**CALLS, "transform": {"function": {"name": "{n}", "arguments": "{content}"}}}), "names n"),
        (with_field("tool_calls", {**CALLS, "content_args": 1}), "content_args must be an object"),
    ],
)
def test_a_template_that_cannot_be_served_is_refused_by_place(spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        load_template(spec)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda item: item.tool_parsers[0])
def test_templates_of_families_say_how_thinking_is_written(family: Any) -> None:
    template = load_template(family.template)
    reasoning = template.reasoning
    assert (reasoning is not None) == ("thinking" in family.template["fields"])
    if reasoning is not None:
        anchor = family.template["start_anchor"]
        prompt = (anchor if isinstance(anchor, str) else anchor[0]) + reasoning.begin
        for ending, answer in ((reasoning.end, None), (reasoning.early_end, "Hello")):
            message = parse(template, f"thoughts{ending}{answer or ''}", prompt=prompt)
            assert (message.reasoning, message.content) == ("thoughts", answer)


def test_special_tokens_that_must_be_seen_are_those_of_the_markers() -> None:
    template = find_template("", tool_call_parser="openai", reasoning_parser="openai_gptoss")
    assert template is not None
    special = [
        "<|start|>",
        "<|end|>",
        "<|message|>",
        "<|channel|>",
        "<|constrain|>",
        "<|call|>",
        "<|endoftext|>",
        "<|return|>",
        "",
    ]
    assert template.visible_tokens(special) == frozenset(special) - {"<|endoftext|>", ""}
    hermes = find_template("", tool_call_parser="hermes")
    assert hermes is not None
    assert hermes.visible_tokens(["<|im_end|>", "<tool_call>", "</tool_call>"]) == {"<tool_call>", "</tool_call>"}


SHOWN = {  # what tells the chat template of a family, and the parsers it stands for
    "{{- '\\n<tool_call>\\n{\"name\": \"' + name }} {{- '</think>' }}": ("hermes", "qwen3"),
    '<tool_call>\n{"name": <function-name>': ("hermes", None),
    "<tool_call>\n<function=example>\n<parameter=a> </think>": ("qwen3_coder", "qwen3"),
    "<seed:tool_call>\n<function=f>\n<parameter=a> <seed:think>": ("seed_oss", "seed_oss"),
    "<|start_header_id|> {{- '\"parameters\": ' }}": ("llama3_json", None),
    "<|header_start|> [func_name1(params_name1=params_value1)]": ("pythonic", None),
    "[TOOL_CALLS]name[ARGS] [THINK]": ("mistral", "mistral"),
    "[TOOL_CALLS] [": ("mistral", None),
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json <think></think>": ("deepseek_v3", "deepseek_r1"),
    "<｜tool▁call▁begin｜>f<｜tool▁sep｜> <think></think>": ("deepseek_v31", "deepseek_v3"),
    "<|channel|>analysis commentary <|call|>": ("openai", "openai_gptoss"),
    "<|start_of_role|> <|tool_call|> Here is my thought process:": ("granite", "granite"),
    "<|tool_call|>[]<|/tool_call|>": ("phi4_mini_json", None),
    "functools[": ("phi4_mini_json", None),
    "<|tool_call>call: <|channel>thought": ("gemma4", "gemma4"),
    "<start_function_call>call:": ("functiongemma", None),
    "<arg_key>a</arg_key>\n<arg_value> </think>": ("glm45", "glm45"),
    "<arg_key>a</arg_key><arg_value> </think>": ("glm47", "glm47"),
    "<|tool_calls_section_begin|> </think>": ("kimi_k2", "kimi_k2"),
    "<minimax:tool_call> </think>": ("minimax_m2", "minimax_m2"),
    "<function_calls> </think>": ("olmo3", "olmo3"),
    "<｜DSML｜function_calls> <think></think>": ("deepseek_v32", "deepseek_v3"),
    "<|tool_call_start|>[f()]": ("lfm2", None),
    "<TOOLCALL>[]</TOOLCALL> </think>": ("nemotron_json", "nemotron_nano_v2"),
    "<|START_ACTION|>[] <|END_THINKING|>": ("cohere_command3", "cohere_command3"),
    "{{ '<think>' }} </think>": (None, "qwen3"),
    "{{ message.content }}": (None, None),
}


@pytest.mark.parametrize("chat_template", SHOWN)
def test_a_chat_template_shows_its_family(chat_template: str) -> None:
    tools, reasoning = SHOWN[chat_template]
    found = find_template(chat_template)
    named = find_template(chat_template, tool_call_parser=tools or "none", reasoning_parser=reasoning or "none")
    if tools is None and reasoning is None:
        assert found is named is None
        return
    assert found is not None
    assert named is not None
    assert dict(found.fields) == dict(named.fields)


def test_the_vocabulary_shows_a_family_where_the_chat_template_does_not() -> None:
    found = find_template("", ["<s>", "[TOOL_CALLS]", "[ARGS]"])
    assert found is not None
    assert found.spec["fields"]["tool_calls"]["transform"]["function"] == {"name": "{name}", "arguments": "{content}"}
    older = find_template("", ["<s>", "[TOOL_CALLS]"])
    assert older is not None
    assert older.spec["fields"]["tool_calls"]["transform_each"]


def test_every_name_has_a_template() -> None:
    for name in TOOL_CALL_PARSERS:
        template = find_template("", tool_call_parser=name, reasoning_parser="none")
        assert template is not None
        assert "tool_calls" in template.fields
        assert "reasoning" not in template.fields
    for name in REASONING_PARSERS:
        template = find_template("", tool_call_parser="none", reasoning_parser=name)
        assert template is not None
        assert template.reasoning is not None
        assert "tool_calls" not in template.fields


def test_the_checkpoints_own_template_comes_first_unless_a_parser_is_named() -> None:
    own = {"start_anchor": "A:", "fields": {"tool_calls": CALLS, "thinking": {"open": "[", "close": "]"}, "content": {}}}
    shown = "<tool_call> </think>"
    assert find_template(shown, own=own) == find_template(
        "", own=own, tool_call_parser="hf", reasoning_parser="response_template"
    )
    mixed = find_template(shown, own=own, tool_call_parser="hermes")
    assert mixed is not None
    assert parse(mixed, '[a]b<tool_call>{"name": "f"}</tool_call>').tool_calls
    assert mixed.reasoning is not None
    assert mixed.reasoning.end == "]"
    assert mixed.tail("x A:y") == "y"
    assert mixed.tail("A: <|im_start|>assistant\nz") == "z"


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ConfigError, match="tool_call_parser hermess is not known; there are auto, none, hf, "):
        find_template("", tool_call_parser="hermess")
    with pytest.raises(ConfigError, match="reasoning_parser hf needs a response_template"):
        find_template("", reasoning_parser="hf")
    with pytest.raises(ConfigError, match="goes with no other"):
        find_template("", tool_call_parser="openai", reasoning_parser="qwen3")
    with pytest.raises(CheckpointError, match="response_template needs start_anchor"):
        find_template("", own={"fields": {"content": {}}})
    assert find_template("", own={"fields": {}}, tool_call_parser="hermes", reasoning_parser="qwen3") is not None


def test_a_template_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "template.json"
    for value in (PLAIN, {"response_template": PLAIN, "model_max_length": 5}):
        file.write_text(json.dumps(value))
        assert read_template_file(file) == PLAIN
    for text, message in (("{", "cannot be read as JSON"), ("[]", "must be an object"), ("{}", "at least one field")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_template_file(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_template_file(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("pattern", "shortest", "leading"),
    [
        (r"<tool_call>\s*<function=(?P<name>[^>\n]+)>", "<tool_call><function={name}>", "<tool_call>"),
        (r"<\|channel\|>x to=(?P<name>\w+).*?<\|message\|>", "<|channel|>x to={name}<|message|>", "<|channel|>x to="),
        (r"(?:<a>)?[^<]*<b>", "<b>", ""),
        (r"\n?</r>", "</r>", ""),
        (r"(?:^|<think>\s*)", "", ""),
        (r"\s*<a>(?=x)(?!y)", "<a>", "<a>"),
        (r"</a>|(?=<b>)", "</a>", ""),
        (r"a[bc]+d", None, "a"),
        (r"a\sb{2,3}\tc", "a b\tc", "a"),
        (r"a)", None, "a"),
    ],
)
def test_patterns_are_read_the_other_way(pattern: str, shortest: str | None, leading: str) -> None:
    assert shortest_text(pattern) == shortest
    assert leading_text(pattern) == leading


def test_the_page_names_every_parser_and_shows_a_template_that_is_one() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "tools_and_reasoning.md").read_text(encoding="utf-8")
    tables = "\n".join(line for line in page.splitlines() if line.startswith("| `"))
    assert [name for name in (*TOOL_CALL_PARSERS, *REASONING_PARSERS) if f"`{name}`" not in tables] == []
    spec = json.loads(page.split("```json\n")[1].split("```")[0])
    shown, hermes = load_template(spec), find_template("", tool_call_parser="hermes", reasoning_parser="qwen3")
    assert hermes is not None
    text = '<think>\na\n</think>\n\nb <tool_call>\n{"name": "f", "arguments": {"c": 1}}\n</tool_call>'
    assert parse(shown, text) == parse(hermes, text)
    assert shown.fields["tool_calls"].writes == hermes.fields["tool_calls"].writes


def test_calls_that_are_told_by_their_place_may_be_behind_thinking() -> None:
    for name, call in (("llama3_json", '{"name": "now", "parameters": {}}'), ("pythonic", "[now()]")):
        template = find_template("", tool_call_parser=name, reasoning_parser="qwen3")
        assert template is not None
        for before, thought in (("", None), ("<think>a</think>\n\n", "a"), ("<think>a</think>", "a")):
            message = parse(template, before + call, tools=read_tools([{"name": "now"}]))
            assert [one.name for one in message.tool_calls] == ["now"]
            assert message.reasoning == thought
        found = parse(template, f"Look: {call}", tools=read_tools([{"name": "now"}])).tool_calls
        assert len(found) == (name == "llama3_json")  # JSON with a tool's name is a call anywhere
