"""How the families of models write their responses, for checkpoints that do not say so themselves: data, no code.

Each template is a `response_template` of transformers with `writes` beside it, which says how a grammar writes what the
patterns leave open. Sources are the checkpoints' own chat templates and what their makers document.
"""

from __future__ import annotations

from jaxserve.chat_parsing.family import (
    BARE_CALL,
    CHATML,
    EACH,
    ENVELOPE,
    FUNCTION,
    NAME,
    NAMED,
    NAMED_WITH_ID,
    Family,
    listed,
    template_of,
    think,
)
from jaxserve.chat_parsing.tag_families import DEEPSEEK_V32, GLM45, GLM47, MINIMAX_M2, QWEN3_CODER, SEED_OSS

HERMES = Family(
    tool_parsers=("hermes", "granite4"),
    reasoning_parsers=("qwen3", "mimo", "nemotron_v3"),
    tool_signs=("<tool_call>",),
    reasoning_signs=("</think>",),
    template=template_of(
        [CHATML, "<|start_of_role|>assistant<|end_of_role|>"],
        {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "transform": FUNCTION,
            "writes": {"trigger": "<tool_call>", "call": f"<tool_call>\n{ENVELOPE}\n</tool_call>", "between": "\n"},
        },
        think("<tool_call>"),
    ),
)

LLAMA3_JSON = Family(
    tool_parsers=("llama3_json", "llama4_json"),
    tool_signs=("<|start_header_id|>", '"parameters": '),
    template=template_of(
        "<|start_header_id|>assistant<|end_header_id|>",
        {
            "open_pattern": r"<\|python_tag\|>\s*(?=\{)|^\s*(?=\{|\[\s*\{)" rf"|(?={BARE_CALL}|\[\s*{BARE_CALL})",
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
    template=template_of(
        ["[/INST]", "[/TOOL_RESULTS]"],
        {
            "open_pattern": r"\[TOOL_CALLS\]\s*(?P<name>[^\s\[\]{}]+)\s*(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?\s*(?=\{)",
            "close_pattern": r"(?=\[TOOL_CALLS\])",
            "content": "json",
            "transform": NAMED_WITH_ID,
            "writes": {"trigger": "[TOOL_CALLS]", "call": "[TOOL_CALLS]{name}[ARGS]{arguments}", "between": ""},
        },
        {"open": "[THINK]", "close": "[/THINK]"},
    ),
)

MISTRAL_LIST = Family(  # tokenizers before v11
    tool_parsers=("mistral",),
    tool_signs=("[TOOL_CALLS]",),
    excluded=("[ARGS]",),
    template=template_of(
        ["[/INST]", "[/TOOL_RESULTS]"],
        {
            "open": "[TOOL_CALLS]",
            "content": "json",
            "transform_each": True,
            "transform": EACH,
            "writes": listed("[TOOL_CALLS]", begin="[TOOL_CALLS]{space}["),
        },
    ),
)

DEEPSEEK_V3 = Family(
    tool_parsers=("deepseek_v3", "deepseek_r1"),
    reasoning_parsers=("deepseek_r1", "deepseek_v3"),
    tool_signs=("<｜tool▁call▁begin｜>", "```json"),
    template=template_of(
        "<｜Assistant｜>",
        {
            "open_pattern": r"<｜tool▁call▁begin｜>\s*\w*\s*<｜tool▁sep｜>(?P<name>[^\s<]+)\s*```json\s*(?=\S)",
            "close_pattern": r"\s*```\s*<｜tool▁call▁end｜>|(?=<｜tool▁calls▁end｜>)",
            "content": "json",
            "transform": NAMED,
            "writes": {
                "trigger": "<｜tool▁calls▁begin｜>",
                "begin": "<｜tool▁calls▁begin｜>",
                "call": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
                "between": "\n",
                "end": "<｜tool▁calls▁end｜>",
            },
        },
        think(),
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
)

DEEPSEEK_V31 = Family(
    tool_parsers=("deepseek_v31",),
    tool_signs=("<｜tool▁call▁begin｜>",),
    excluded=("```json",),
    template=template_of(
        "<｜Assistant｜>",
        {
            "open_pattern": r"<｜tool▁call▁begin｜>\s*(?P<name>[^\s<]+)\s*<｜tool▁sep｜>",
            "close_pattern": "<｜tool▁call▁end｜>|(?=<｜tool▁calls▁end｜>)",
            "content": "json",
            "transform": NAMED,
            "writes": {
                "trigger": "<｜tool▁calls▁begin｜>",
                "begin": "<｜tool▁calls▁begin｜>",
                "call": "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
                "between": "",
                "end": "<｜tool▁calls▁end｜>",
            },
        },
        think(),
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
                "open_pattern": r"(?:<\|start\|>assistant)?\s*<\|channel\|>\s*analysis\s*"
                r"(?:<\|constrain\|>[^<]*)?<\|message\|>",
                "close_pattern": r"<\|end\|>|(?=<\|start\|>assistant)|(?=<\|channel\|>final)",
                "repeats": True,
                "join": "\n",
                "writes": {
                    "close": "<|end|><|start|>assistant",
                    "early_close": "<|end|><|start|>assistant<|channel|>final<|message|>",
                },
            },
            "tool_calls": {
                "open_pattern": r"(?:<\|start\|>assistant)?\s*"
                r"(?:to=functions\.(?P<name>[\w.\-]+)\s*<\|channel\|>\s*\w+"
                r"|<\|channel\|>\s*\w+\s+to=functions\.(?P<name>[\w.\-]+))[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>",
                "close": ["<|call|>", "<|end|>"],
                "repeats": True,
                "content": "json",
                "transform": NAMED,
                "writes": {"call": "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"},
            },
            "content": {  # with any other header, or none
                "open_pattern": r"(?:<\|start\|>assistant)?\s*(?:<\|channel\|>[^<]*)?(?:<\|constrain\|>[^<]*)?<\|message\|>"
                r"|(?:^|(?<=<\|end\|>))\s*(?=[^<\s])",
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
    template=template_of(
        "<|start_of_role|>assistant<|end_of_role|>",
        {
            "open_pattern": rf"<\|tool_call\|>|<tool_call>|(?:^|(?<=my response:))\s*(?={BARE_CALL}|\[\s*{BARE_CALL})",
            "content": "json",
            "transform_each": True,
            "transform": EACH,
            "writes": listed("<|tool_call|>"),
        },
        {
            "open": ["Here is my thought process:", "Here's my thought process:"],
            "close": ["Here is my response:", "Here's my response:"],
        },
    ),
)

_PHI4_CALLS = {"content": "json", "transform_each": True, "transform": EACH}
PHI4_MINI = Family(
    tool_parsers=("phi4_mini_json",),
    tool_signs=("<|tool_call|>", "<|/tool_call|>"),
    excluded=("functools",),
    template=template_of(
        "<|assistant|>",
        {
            **_PHI4_CALLS,
            "open": "<|tool_call|>",
            "close": "<|/tool_call|>",
            "writes": listed("<|tool_call|>", end="]<|/tool_call|>"),
        },
    ),
)

PHI4_FUNCTOOLS = Family(  # as the chat template that vLLM brings for it asks for calls
    tool_parsers=("phi4_mini_json",),
    tool_signs=("functools",),
    template=template_of(
        "<|assistant|>",
        {**_PHI4_CALLS, "open_pattern": r"functools(?=\[)", "writes": listed("functools[", begin="functools[")},
    ),
)

GEMMA4 = Family(
    tool_parsers=("gemma4",),
    reasoning_parsers=("gemma4",),
    tool_signs=("<|tool_call>",),
    reasoning_signs=("<|channel>",),
    template=template_of(
        ["<|turn>model\n", "<tool_response|>"],
        {
            "open_pattern": rf"<\|tool_call>\s*:?\s*call\s*:\s*(?P<name>{NAME})"
            rf"|(?:^|(?<=<channel\|>)|(?<=<tool_call\|>))\s*call:(?P<name>{NAME})(?=\{{)",
            "close": "<tool_call|>",
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": NAMED,
            "writes": {"trigger": "<|tool_call>", "call": "<|tool_call>call:{name}{arguments}<tool_call|>", "between": ""},
        },
        {
            "open_pattern": r"<\|channel>\s*thought\n|<\|channel>thought(?=<channel\|>)|<\|channel>",
            "close": "<channel|>",
        },
    ),
)

FUNCTIONGEMMA = Family(
    tool_parsers=("functiongemma",),
    tool_signs=("<start_function_call>",),
    template=template_of(
        "<start_of_turn>model\n",
        {
            "open_pattern": rf"<start_function_call>\s*:?\s*call:(?P<name>{NAME})",
            "close": "<end_function_call>",
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [["<escape>", "<escape>"]]},
            "transform": NAMED,
            "writes": {
                "trigger": "<start_function_call>",
                "call": "<start_function_call>call:{name}{arguments}<end_function_call>",
                "between": "",
            },
        },
    ),
)


KIMI_K2 = Family(
    tool_parsers=("kimi_k2",),
    reasoning_parsers=("kimi_k2",),
    tool_signs=("<|tool_calls_section_begin|>",),
    template=template_of(
        "<|im_assistant|>assistant<|im_middle|>",
        {
            "open_pattern": r"<\|tool_call_begin\|>\s*"
            r"(?P<id>(?:functions\.)?(?P<name>[\w.\-]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>",
            "close_pattern": r"<\|tool_call_end\|>|(?=<\|tool_calls_section_end\|>)",
            "content": "json",
            "transform": NAMED_WITH_ID,
            "writes": {
                "trigger": "<|tool_calls_section_begin|>",
                "begin": "<|tool_calls_section_begin|>",
                "call": "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
                "between": "",
                "end": "<|tool_calls_section_end|>",
            },
        },
        think(r"<\|tool_calls_section_begin\|>", space=""),
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
)

OLMO3 = Family(
    tool_parsers=("olmo3",),
    reasoning_parsers=("olmo3",),
    tool_signs=("<function_calls>",),
    template=template_of(
        CHATML,
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
        think(),
    ),
)

PYTHONIC = Family(
    tool_parsers=("pythonic", "llama4_pythonic"),
    tool_signs=("[func_name1(",),
    template=template_of(
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

LFM2 = Family(
    tool_parsers=("lfm2",),
    tool_signs=("<|tool_call_start|>",),
    template=template_of(
        CHATML,
        {
            "open": "<|tool_call_start|>",
            "close": "<|tool_call_end|>",
            "content": "python-calls",
            "writes": {
                "trigger": "<|tool_call_start|>",
                "begin": "<|tool_call_start|>[",
                "call": "{name}({arguments})",
                "parameter": "{key}={value}",
                "between": ", ",
                "end": "]<|tool_call_end|>",
            },
        },
        think(),
    ),
)

NEMOTRON = Family(  # Nano 2 and Llama Nemotron; Nemotron 3 writes as Qwen3-Coder does
    tool_parsers=("nemotron_json",),
    reasoning_parsers=("nemotron_nano_v2",),
    tool_signs=("<TOOLCALL>",),
    template=template_of(
        ["<SPECIAL_11>Assistant\n", "<|start_header_id|>assistant<|end_header_id|>"],
        {
            "open": "<TOOLCALL>",
            "close": "</TOOLCALL>",
            "content": "json",
            "transform_each": True,
            "transform": EACH,
            "writes": listed("<TOOLCALL>", end="]</TOOLCALL>"),
        },
        think("<TOOLCALL>"),
    ),
)

COHERE = Family(
    tool_parsers=("cohere_command3", "cohere_command4"),
    reasoning_parsers=("cohere_command3", "cohere_command4"),
    tool_signs=("<|START_ACTION|>",),
    template=template_of(
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        {
            "open": "<|START_ACTION|>",
            "close": "<|END_ACTION|>",
            "content": "json",
            "transform_each": True,
            "transform": {
                "type": "function",
                "id": "{tool_call_id}",
                "function": {"name": "{tool_name}", "arguments": "{parameters}"},
            },
            "writes": {
                "trigger": "<|START_ACTION|>",
                "begin": "<|START_ACTION|>[\n    ",
                "call": '{"tool_call_id": "{index}", "tool_name": "{name}", "parameters": {arguments}}',
                "between": ",\n    ",
                "end": "\n]<|END_ACTION|>",
            },
        },
        {"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"},
        section=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),  # around content
    ),
)

XLAM = Family(  # asks for its format in the system prompt, so that no chat template shows it
    tool_parsers=("xlam",),
    template=template_of(
        [CHATML, "<|start_header_id|>assistant<|end_header_id|>"],
        {
            "open_pattern": rf"(?:<tool_call>|\[TOOL_CALLS\]|```(?:json)?)\s*(?={BARE_CALL}|\[\s*{BARE_CALL})"
            rf"|(?={BARE_CALL}|\[\s*{BARE_CALL})",
            "close_pattern": r"\s*(?:</tool_call>|```)",
            "content": "json",
            "transform_each": True,
            "transform": EACH,
            "writes": {
                "unmarked": r"\s*\[?\s*\{\s*\"name\"",
                "begin": "[",
                "call": ENVELOPE,
                "between": ", ",
                "end": "]",
            },
        },
    ),
)

# In the order in which a chat template is asked for their signs: special ones before those whose signs others have, too.
FAMILIES = (
    OPENAI, COHERE, LFM2, NEMOTRON, GEMMA4, FUNCTIONGEMMA, MINIMAX_M2, SEED_OSS, KIMI_K2, DEEPSEEK_V32, DEEPSEEK_V3, DEEPSEEK_V31,
    GLM45, GLM47, QWEN3_CODER, MISTRAL, MISTRAL_LIST, OLMO3, HERMES, GRANITE, PHI4_MINI, PHI4_FUNCTOOLS, PYTHONIC, LLAMA3_JSON,
    XLAM,
)  # fmt: skip
