"""How the families of models write their responses, for checkpoints that do not say so themselves: data, no code.

Each template is a `response_template` of transformers with `writes` beside it, which says how a grammar writes what the
patterns leave open. Sources are the checkpoints' own chat templates and what their makers document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FUNCTION = {"type": "function", "function": "{content}"}
_NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
_NAMED_WITH_ID = {**_NAMED, "id": "{id}"}
_EACH = {"type": "function", "id": "{id}", "function": {"name": "{name}", "arguments": "{arguments}"}}
_ENVELOPE = '{"name": "{name}", "arguments": {arguments}}'
_ANY_JSON = {"name": "json", "args": {"allow_non_json": True}}
_NAME = r"[\w.\-]+"


@dataclass(frozen=True, slots=True)
class Family:
    """A way to write calls, reasoning or both.

    Attributes:
        tool_parsers, reasoning_parsers: its names, which are those of vLLM for `--tool-call-parser` and `--reasoning-parser`.
        tool_signs, reasoning_signs: texts which the chat template of a model that writes so has, all of them.
        excluded: a text that shows another family.
    """

    template: Mapping[str, Any]
    tool_parsers: tuple[str, ...] = ()
    reasoning_parsers: tuple[str, ...] = ()
    tool_signs: tuple[str, ...] = ()
    reasoning_signs: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


def _template(
    start: str | list[str],
    tool_calls: Mapping[str, Any],
    thinking: Mapping[str, Any] | None = None,
    section: tuple[str, ...] = (),
) -> dict[str, Any]:
    """`section`: markers around all calls, which say nothing beside those of each call."""
    fields: dict[str, Any] = {"thinking": thinking} if thinking else {}
    fields["tool_calls"] = {"repeats": True, **tool_calls}
    fields["content"] = {"close": list(section)} if section else {}
    return {"start_anchor": start, "fields": fields}


def _think(ends_too: str = "", *, mark: str = "think", space: str = "\n") -> dict[str, Any]:
    """`<think>...</think>`; `ends_too`: a call's marker, before which some models leave out the end of their thinking."""
    field: dict[str, Any] = {"open": f"<{mark}>", "writes": {"close": f"{space}</{mark}>{space}{space}"}}
    close = {"close_pattern": rf"</{mark}>|(?={ends_too})"} if ends_too else {"close": f"</{mark}>"}
    return {**field, **close}


def _listed(marker: str, *, begin: str = "", end: str = "]") -> dict[str, str]:
    """How a list of objects with name and arguments is written."""
    return {"trigger": marker, "begin": begin or f"{marker}[", "call": _ENVELOPE, "between": ", ", "end": end}


_CHATML = "<|im_start|>assistant\n"

HERMES = Family(
    tool_parsers=("hermes", "granite4"),
    reasoning_parsers=("qwen3", "mimo", "nemotron_v3"),
    tool_signs=("<tool_call>",),
    reasoning_signs=("</think>",),
    template=_template(
        [_CHATML, "<|start_of_role|>assistant<|end_of_role|>"],
        {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "transform": _FUNCTION,
            "writes": {"trigger": "<tool_call>", "call": f"<tool_call>\n{_ENVELOPE}\n</tool_call>", "between": "\n"},
        },
        _think("<tool_call>"),
    ),
)

QWEN3_CODER = Family(
    tool_parsers=("qwen3_coder", "qwen3_xml", "mimo"),
    tool_signs=("<function=", "<parameter=", "<tool_call>"),
    template=_template(
        _CHATML,
        {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\s]+)\s*>",
            "close_pattern": r"</function>\s*</tool_call>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>",
                "value_parser": _ANY_JSON,
            },
            "transform": _NAMED,
            "writes": {
                "trigger": "<tool_call>",
                "call": "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
                "parameter": "<parameter={key}>\n{value}\n</parameter>\n",
                "between": "\n",
            },
        },
        _think("<tool_call>"),
    ),
)

LLAMA3_JSON = Family(
    tool_parsers=("llama3_json", "llama4_json"),
    tool_signs=("<|start_header_id|>", '"parameters": '),
    template=_template(
        "<|start_header_id|>assistant<|end_header_id|>",
        {
            "open_pattern": r"<\|python_tag\|>\s*(?=\{)|^\s*(?=\{|\[\s*\{)",
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{content.name}", "arguments": "{content.parameters}"}},
            "writes": {
                "unmarked": r"\s*\[?\s*\{\s*\"name\"",
                "prelude": "<|python_tag|>",
                "call": '{"name": "{name}", "parameters": {arguments}}',
            },
        },
    ),
)

MISTRAL = Family(  # tokenizers of v11 and later
    tool_parsers=("mistral",),
    reasoning_parsers=("mistral",),
    tool_signs=("[TOOL_CALLS]", "[ARGS]"),
    reasoning_signs=("[THINK]",),
    template=_template(
        ["[/INST]", "[/TOOL_RESULTS]"],
        {
            "open_pattern": r"\[TOOL_CALLS\]\s*(?P<name>[^\s\[\]{}]+)\s*(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?\s*(?=\{)",
            "close_pattern": r"(?=\[TOOL_CALLS\])",
            "content": "json",
            "transform": _NAMED_WITH_ID,
            "writes": {"trigger": "[TOOL_CALLS]", "call": "[TOOL_CALLS]{name}[ARGS]{arguments}", "between": ""},
        },
        {"open": "[THINK]", "close": "[/THINK]"},
    ),
)

MISTRAL_LIST = Family(  # tokenizers before v11
    tool_parsers=("mistral",),
    tool_signs=("[TOOL_CALLS]",),
    excluded=("[ARGS]",),
    template=_template(
        ["[/INST]", "[/TOOL_RESULTS]"],
        {
            "open": "[TOOL_CALLS]",
            "content": "json",
            "transform_each": True,
            "transform": _EACH,
            "writes": _listed("[TOOL_CALLS]", begin="[TOOL_CALLS]{space}["),
        },
    ),
)

DEEPSEEK_V3 = Family(
    tool_parsers=("deepseek_v3", "deepseek_r1"),
    reasoning_parsers=("deepseek_r1", "deepseek_v3"),
    tool_signs=("<｜tool▁call▁begin｜>", "```json"),
    template=_template(
        "<｜Assistant｜>",
        {
            "open_pattern": r"<｜tool▁call▁begin｜>\s*\w*\s*<｜tool▁sep｜>(?P<name>[^\s<]+)\s*```json\s*(?=\S)",
            "close_pattern": r"\s*```\s*<｜tool▁call▁end｜>",
            "content": "json",
            "transform": _NAMED,
            "writes": {
                "trigger": "<｜tool▁calls▁begin｜>",
                "begin": "<｜tool▁calls▁begin｜>",
                "call": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
                "between": "\n",
                "end": "<｜tool▁calls▁end｜>",
            },
        },
        _think(),
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
)

DEEPSEEK_V31 = Family(
    tool_parsers=("deepseek_v31",),
    tool_signs=("<｜tool▁call▁begin｜>",),
    excluded=("```json",),
    template=_template(
        "<｜Assistant｜>",
        {
            "open_pattern": r"<｜tool▁call▁begin｜>\s*(?P<name>[^\s<]+)\s*<｜tool▁sep｜>",
            "close": "<｜tool▁call▁end｜>",
            "content": "json",
            "transform": _NAMED,
            "writes": {
                "trigger": "<｜tool▁calls▁begin｜>",
                "begin": "<｜tool▁calls▁begin｜>",
                "call": "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
                "between": "",
                "end": "<｜tool▁calls▁end｜>",
            },
        },
        _think(),
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
)

OPENAI = Family(  # gpt-oss: harmony
    tool_parsers=("openai",),
    reasoning_parsers=("openai_gptoss",),
    tool_signs=("<|channel|>", "commentary"),
    reasoning_signs=("<|channel|>", "analysis"),
    template={
        "start_anchor": "<|start|>assistant",
        "fields": {
            "thinking": {
                "open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>",
                "close": "<|end|>",
                "repeats": True,
                "join": "\n",
                "writes": {
                    "close": "<|end|><|start|>assistant",
                    "early_close": "<|end|><|start|>assistant<|channel|>final<|message|>",
                },
            },
            "tool_calls": {
                "open_pattern": r"(?:<\|start\|>assistant)?(?:\s+to=functions\.(?P<name>[\w.\-]+)\s*<\|channel\|>\w+"
                r"|<\|channel\|>\w+\s+to=functions\.(?P<name>[\w.\-]+))[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>",
                "close": ["<|call|>", "<|end|>"],
                "repeats": True,
                "content": "json",
                "transform": _NAMED,
                "writes": {"call": "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"},
            },
            "content": {  # a response without a header is content, too
                "open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)"
                r"(?:\s+json|\s*<\|constrain\|>\w+)?<\|message\|>"
                r"|^(?=[^<\s])",
                "close": ["<|end|>", "<|return|>"],
                "repeats": True,
                "join": "\n",
                "writes": {
                    "open": "<|channel|>final<|message|>",
                    "preamble_open": "<|channel|>commentary<|message|>",
                    "preamble_close": "<|end|><|start|>assistant",
                },
            },
        },
    },
)

GRANITE = Family(
    tool_parsers=("granite",),
    reasoning_parsers=("granite",),
    tool_signs=("<|tool_call|>", "<|start_of_role|>"),
    reasoning_signs=("Here is my thought process:",),
    template=_template(
        "<|start_of_role|>assistant<|end_of_role|>",
        {
            "open": ["<|tool_call|>", "<tool_call>"],
            "content": "json",
            "transform_each": True,
            "transform": _EACH,
            "writes": _listed("<|tool_call|>"),
        },
        {
            "open": ["Here is my thought process:", "Here's my thought process:"],
            "close": ["Here is my response:", "Here's my response:"],
        },
    ),
)

_PHI4_CALLS = {"content": "json", "transform_each": True, "transform": _EACH}
PHI4_MINI = Family(
    tool_parsers=("phi4_mini_json",),
    tool_signs=("<|tool_call|>", "<|/tool_call|>"),
    excluded=("functools",),
    template=_template(
        "<|assistant|>",
        {
            **_PHI4_CALLS,
            "open": "<|tool_call|>",
            "close": "<|/tool_call|>",
            "writes": _listed("<|tool_call|>", end="]<|/tool_call|>"),
        },
    ),
)

PHI4_FUNCTOOLS = Family(  # as the chat template that vLLM brings for it asks for calls
    tool_parsers=("phi4_mini_json",),
    tool_signs=("functools",),
    template=_template(
        "<|assistant|>",
        {**_PHI4_CALLS, "open_pattern": r"functools(?=\[)", "writes": _listed("functools[", begin="functools[")},
    ),
)

GEMMA4 = Family(
    tool_parsers=("gemma4",),
    reasoning_parsers=("gemma4",),
    tool_signs=("<|tool_call>",),
    reasoning_signs=("<|channel>",),
    template=_template(
        ["<|turn>model\n", "<tool_response|>"],
        {
            "open_pattern": rf"<\|tool_call>call:(?P<name>{_NAME})",
            "close": "<tool_call|>",
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": _NAMED,
            "writes": {"trigger": "<|tool_call>", "call": "<|tool_call>call:{name}{arguments}<tool_call|>", "between": ""},
        },
        {"open": "<|channel>thought\n", "close": "<channel|>"},
    ),
)

FUNCTIONGEMMA = Family(
    tool_parsers=("functiongemma",),
    tool_signs=("<start_function_call>",),
    template=_template(
        "<start_of_turn>model\n",
        {
            "open_pattern": rf"<start_function_call>call:(?P<name>{_NAME})",
            "close": "<end_function_call>",
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [["<escape>", "<escape>"]]},
            "transform": _NAMED,
            "writes": {
                "trigger": "<start_function_call>",
                "call": "<start_function_call>call:{name}{arguments}<end_function_call>",
                "between": "",
            },
        },
    ),
)


def _glm(newline: str) -> dict[str, Any]:
    return _template(
        "<|assistant|>",
        {
            "open_pattern": r"<tool_call>\s*(?P<name>[^\s<]+)\s*(?=<)",
            "close": "</tool_call>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<arg_key>\s*(?P<key>[^<]+?)\s*</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
                "value_parser": _ANY_JSON,
            },
            "transform": _NAMED,
            "writes": {
                "trigger": "<tool_call>",
                "call": f"<tool_call>{{name}}{newline}{{arguments}}</tool_call>",
                "parameter": f"<arg_key>{{key}}</arg_key>{newline}<arg_value>{{value}}</arg_value>{newline}",
                "between": newline,
            },
        },
        _think("<tool_call>", space=""),
    )


GLM45 = Family(
    tool_parsers=("glm45",), reasoning_parsers=("glm45", "glm47"), tool_signs=("</arg_key>\n<arg_value>",), template=_glm("\n")
)
GLM47 = Family(tool_parsers=("glm47",), tool_signs=("<arg_key>",), template=_glm(""))

KIMI_K2 = Family(
    tool_parsers=("kimi_k2",),
    reasoning_parsers=("kimi_k2",),
    tool_signs=("<|tool_calls_section_begin|>",),
    template=_template(
        "<|im_assistant|>assistant<|im_middle|>",
        {
            "open_pattern": r"<\|tool_call_begin\|>\s*"
            r"(?P<id>(?:functions\.)?(?P<name>[\w.\-]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>",
            "close": "<|tool_call_end|>",
            "content": "json",
            "transform": _NAMED_WITH_ID,
            "writes": {
                "trigger": "<|tool_calls_section_begin|>",
                "begin": "<|tool_calls_section_begin|>",
                "call": "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
                "between": "",
                "end": "<|tool_calls_section_end|>",
            },
        },
        _think(r"<\|tool_calls_section_begin\|>", space=""),
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
)

MINIMAX_M2 = Family(
    tool_parsers=("minimax_m2",),
    reasoning_parsers=("minimax_m2",),
    tool_signs=("<minimax:tool_call>",),
    template=_template(
        "]~b]ai\n",
        {
            "open_pattern": r'<invoke name="(?P<name>[^"]+)">',
            "close": "</invoke>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r'<parameter name="(?P<key>[^"]+)">(?P<value>.*?)</parameter>',
                "value_parser": _ANY_JSON,
            },
            "transform": _NAMED,
            "writes": {
                "trigger": "<minimax:tool_call>",
                "begin": "<minimax:tool_call>\n",
                "call": '<invoke name="{name}">\n{arguments}</invoke>\n',
                "parameter": '<parameter name="{key}">{value}</parameter>\n',
                "between": "",
                "end": "</minimax:tool_call>",
            },
        },
        _think(),
        section=("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
)

OLMO3 = Family(
    tool_parsers=("olmo3",),
    reasoning_parsers=("olmo3",),
    tool_signs=("<function_calls>",),
    template=_template(
        _CHATML,
        {
            "open": "<function_calls>",
            "close": "</function_calls>",
            "content": "python-calls",
            "writes": {
                "trigger": "<function_calls>",
                "begin": "<function_calls>\n",
                "call": "{name}({arguments})",
                "parameter": "{key}={value}",
                "between": "\n",
                "end": "\n</function_calls>",
            },
        },
        _think(),
    ),
)

PYTHONIC = Family(
    tool_parsers=("pythonic", "llama4_pythonic"),
    tool_signs=("[func_name1(",),
    template=_template(
        ["<|start_header_id|>assistant<|end_header_id|>", "<|header_start|>assistant<|header_end|>", "<start_of_turn>model\n"],
        {
            "open_pattern": r"^\s*(?:<\|python_start\|>)?\s*(?=\[\s*[A-Za-z_][\w.\-]*\()",
            "close": "<|python_end|>",
            "content": "python-calls",
            "writes": {
                "unmarked": r"\s*\[\s*[A-Za-z_][\w.\-]*\(",
                "prelude": "<|python_start|>",
                "begin": "[",
                "call": "{name}({arguments})",
                "parameter": "{key}={value}",
                "between": ", ",
                "end": "]",
            },
        },
    ),
)

SEED_OSS = Family(
    tool_parsers=("seed_oss",),
    reasoning_parsers=("seed_oss",),
    tool_signs=("<seed:tool_call>",),
    reasoning_signs=("<seed:think>",),
    template=_template(
        "<seed:bos>assistant\n",
        {
            "open_pattern": r"<seed:tool_call>\s*<function=(?P<name>[^>\s]+)\s*>",
            "close_pattern": r"</function>\s*</seed:tool_call>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>(?P<value>.*?)</parameter>", "value_parser": _ANY_JSON},
            "transform": _NAMED,
            "writes": {
                "trigger": "<seed:tool_call>",
                "call": "<seed:tool_call>\n<function={name}>\n{arguments}</function>\n</seed:tool_call>",
                "parameter": "<parameter={key}>{value}</parameter>\n",
                "between": "\n",
            },
        },
        {**_think(mark="seed:think"), "writes": {"close": "</seed:think>\n"}},
    ),
)

# In the order in which a chat template is asked for their signs: special ones before those whose signs others have, too.
FAMILIES = (
    OPENAI, GEMMA4, FUNCTIONGEMMA, MINIMAX_M2, SEED_OSS, KIMI_K2, DEEPSEEK_V3, DEEPSEEK_V31, GLM45, GLM47, QWEN3_CODER,
    MISTRAL, MISTRAL_LIST, OLMO3, HERMES, GRANITE, PHI4_MINI, PHI4_FUNCTOOLS, PYTHONIC, LLAMA3_JSON,
)  # fmt: skip
