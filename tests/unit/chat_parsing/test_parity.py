"""The same messages as transformers' own parser makes with the same templates."""

import copy
import json
from typing import Any

import pytest

from jaxserve.chat_parsing import Message, find_template, load_template, parse, read_tools

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # of transformers without torch

FUNCTION = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
VERBATIM = {"close": "<e>", "repeats": True, "content_args": {"strip": False}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}},
            },
        },
    },
    {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}},
]


def described(start: str, **fields: Any) -> dict[str, Any]:
    return {"defaults": {"role": "assistant"}, "start_anchor": start, "fields": fields}


def own(tool_call_parser: str, reasoning_parser: str = "none") -> dict[str, Any]:
    """A family's template as transformers takes it."""
    template = find_template("", tool_call_parser=tool_call_parser, reasoning_parser=reasoning_parser)
    assert template is not None
    spec = copy.deepcopy(dict(template.spec))
    for field in spec["fields"].values():
        field.pop("writes", None)
    return spec


CASES = {
    "chatml": (
        described(
            "<A>\n",
            thinking={"open": "<think>", "close": "</think>"},
            tool_calls={"open": "<tc>", "close": "</tc>", "repeats": True, "content": "json", "transform": FUNCTION},
            content={"close": ["<end>", "<stop>"]},
        ),
        "<A>\nold<A>\n<think>\n",
        ('Hm <x>.\n</think>\n\nHello <b>!\n<tc>{"name": "f", "arguments": {"a": "x", "o": {"b": [1]}}}</tc><tc>'
        '{"name": "g", "arguments": {}}</tc><end>'),
    ),
    "each": (
        described(
            "<A>",
            content={"open": "<r>", "close": "</r>"},
            tool_calls={
                "open": "<act>", "close": "</act>", "content": "json", "transform_each": True,
                "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
            },
        ),
        "<A>",
        ('<r> Hi </r><act>'
        '[{"tool_name": "f", "parameters": {"n": 1}}, {"tool_call_id": "0", "tool_name": "g", "parameters": {}}]</act>x'),
    ),
    "begins inside": (
        described(
            "A:",
            thinking={"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
            content={"open": "<response>\n", "close_pattern": r"\n?</response>"},
        ),
        "",
        "The user.\n</think>\n\n<response>\nHello!\n</response>\n</s>",
    ),
    "channels": (
        described(
            "<|start|>assistant",
            thinking={"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
            content={"open": "<|channel|>final<|message|>", "close": "<|end|>"},
            tool_calls={
                "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>", "close": "<|call|>",
                "repeats": True, "content": "json", "transform": NAMED,
            },
        ),
        "<|start|>assistant",
        ('<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>'
        'commentary to=functions.f <|constrain|>json<|message|>{\n "a": "b"\n}'),
    ),
    "lines": (
        described(
            "A:",
            tool_calls={
                "open_pattern": r"<(?P<name>\w+)>", "close": "</>", "repeats": True, "content": "kv-lines", "transform": NAMED,
                "content_args": {"value_parser": {"name": "json", "args": {"allow_non_json": True}}},
            },
        ),
        "",
        "<f>\nn: 3\na: x:y\nnothing\n</><f></>",
    ),
    "tags": (
        described(
            "A:",
            tool_calls={
                "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>", "close": "</tool_call>", "repeats": True,
                "content": "xml-inline", "transform": NAMED,
                "content_args": {
                    "tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>",
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                },
            },
        ),
        "",
        ("<tool_call>\n<function=f>\n<parameter=a>\n x y \n</parameter><parameter=n>7</parameter><parameter=z>"
        "[1, 2]</parameter></function>\n</tool_call>"),
    ),
    "duplicates": (
        described(
            "A:",
            tool_calls={
                "open_pattern": r"<(?P<name>\w+)>", "close": "</>", "content": "xml-inline", "transform": NAMED, "repeats": True,
                "content_args": {"tag_pattern": r"\[(?P<key>\w)\](?P<value>.*?);", "merge_duplicates": True},
            },
        ),
        "",
        "<f>[a]1;[b]2;[a]3;</>",
    ),
    "joined": (
        described(
            "<m>",
            thinking={"open_pattern": r"(?:<m>)?[^<]*<t>", "join": "", **VERBATIM},
            content={"open_pattern": r"(?:<m>)?[^<]*<c>", "join": "|", **VERBATIM},
        ),
        "<m>",
        "<t> a<e><m>x<c>b <e><m><c> c<e><m><t>d",
    ),
    "hermes": (
        own("hermes", "qwen3"),
        "<|im_start|>assistant\n<think>\n",
        'So.\n</think>\n\nOK <tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>',
    ),
    "qwen3_coder": (
        own("qwen3_coder", "qwen3"),
        "<|im_start|>assistant\n",
        ("<think>\nSo.\n</think><tool_call>\n<function=f>\n<parameter=a>\nx\n\ny\n</parameter>\n<parameter=n>"
        "\n7\n</parameter>\n</function>\n</tool_call>"),
    ),
    "deepseek_v3": (
        own("deepseek_v3", "deepseek_r1"),
        "<｜Assistant｜><think>\n",
        ('So.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>'
        'f\n```json\n{"a": "x"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'),
    ),
    "openai": (
        own("openai", "openai_gptoss"),
        "<|start|>assistant",
        ('<|channel|>analysis<|message|>So.<|end|><|start|>assistant to=functions.f<|channel|>'
        'commentary json<|message|>{"a": "x"}<|call|>'),
    ),
    "gemma4": (
        own("gemma4", "gemma4"),
        "<|turn>model\n",
        '<|channel>thought\nSo.<channel|>OK<|tool_call>call:f{a:<|"|>x"{,<|"|>,n:3,o:{b:[true,null]}}<tool_call|>',
    ),
    "kimi_k2": (
        own("kimi_k2", "kimi_k2"),
        "<|im_assistant|>assistant<|im_middle|>",
        ('<think>So.</think>OK<|tool_calls_section_begin|><|tool_call_begin|>'
        'functions.f:0<|tool_call_argument_begin|>{"a": "x"}<|tool_call_end|><|tool_calls_section_end|>'),
    ),
    "glm45": (
        own("glm45", "glm45"),
        "<|assistant|>",
        ("\n<think>So.</think>\nOK\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n<arg_key>"
        "n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"),
    ),
    "minimax_m2": (
        own("minimax_m2", "minimax_m2"),
        "]~b]ai\n<think>\n",
        ('So.\n</think>\n\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">x</parameter>\n</invoke>'
        '\n</minimax:tool_call>'),
    ),
    "granite": (
        own("granite", "granite"),
        "<|start_of_role|>assistant<|end_of_role|>",
        'Here is my thought process: So. Here is my response: <|tool_call|>[{"id": "1", "name": "f", "arguments": {"a": "x"}}]',
    ),
}  # fmt: skip


def values(message: Message) -> tuple[str, str, list[tuple[str, Any]]]:
    calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    return message.reasoning or "", message.content or "", calls


@pytest.mark.parametrize("with_tools", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_same_message_as_transformers(name: str, with_tools: bool) -> None:
    theirs = pytest.importorskip("transformers.utils.chat_parsing")
    spec, prompt, text = CASES[name]
    expected = theirs.parse_response(text, spec, prefix=prompt, tools=TOOLS if with_tools else None)
    calls = [call for item in expected.get("tool_calls", ()) for call in (item if isinstance(item, list) else [item])]
    ours = parse(load_template(spec), text, prompt=prompt, tools=read_tools(TOOLS) if with_tools else None)
    assert values(ours) == (
        expected.get("thinking", ""),
        expected.get("content", ""),
        [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
    )
