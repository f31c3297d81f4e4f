"""Families whose calls have a tag for each argument; see `families`."""

from __future__ import annotations

from typing import Any

from jaxserve.chat_parsing.family import ANY_JSON, CHATML, NAMED, Family, template_of, think

QWEN3_CODER = Family(
    tool_parsers=("qwen3_coder", "qwen3_xml", "mimo"),
    tool_signs=("<function=", "<parameter=", "<tool_call>"),
    template=template_of(
        CHATML,
        {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\s]+)\s*>|<function=(?P<name>[^>\s]+)\s*>",
            "close_pattern": r"</function>(?:\s*</tool_call>)?|</tool_call>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>",
                "value_parser": ANY_JSON,
            },
            "transform": NAMED,
            "writes": {
                "trigger": "<tool_call>",
                "call": "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
                "parameter": "<parameter={key}>\n{value}\n</parameter>\n",
                "between": "\n",
            },
        },
        think("<tool_call>"),
    ),
)


def _glm(newline: str) -> dict[str, Any]:
    return template_of(
        "<|assistant|>",
        {
            "open_pattern": r"<tool_call>\s*(?P<name>[^\s<]+)\s*(?=<)",
            "close": "</tool_call>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<arg_key>\s*(?P<key>[^<]+?)\s*</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
                "value_parser": ANY_JSON,
            },
            "transform": NAMED,
            "writes": {
                "trigger": "<tool_call>",
                "call": f"<tool_call>{{name}}{newline}{{arguments}}</tool_call>",
                "parameter": f"<arg_key>{{key}}</arg_key>{newline}<arg_value>{{value}}</arg_value>{newline}",
                "between": newline,
            },
        },
        think("<tool_call>", space=""),
    )


GLM45 = Family(
    tool_parsers=("glm45",), reasoning_parsers=("glm45", "glm47"), tool_signs=("</arg_key>\n<arg_value>",), template=_glm("\n")
)
GLM47 = Family(tool_parsers=("glm47",), tool_signs=("<arg_key>",), template=_glm(""))

MINIMAX_M2 = Family(
    tool_parsers=("minimax_m2",),
    reasoning_parsers=("minimax_m2",),
    inline_reasoning_parsers=("minimax_m2_append_think",),
    tool_signs=("<minimax:tool_call>",),
    template=template_of(
        "]~b]ai\n",
        {
            "open_pattern": r'<invoke name="(?P<name>[^"]+)">',
            "close_pattern": r"</invoke>|(?=</minimax:tool_call>)",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r'<parameter name="(?P<key>[^"]+)">(?P<value>.*?)</parameter>',
                "value_parser": ANY_JSON,
            },
            "transform": NAMED,
            "writes": {
                "trigger": "<minimax:tool_call>",
                "begin": "<minimax:tool_call>\n",
                "call": '<invoke name="{name}">\n{arguments}</invoke>\n',
                "parameter": '<parameter name="{key}">{value}</parameter>\n',
                "between": "",
                "end": "</minimax:tool_call>",
            },
        },
        think(),
        section=("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
)

SEED_OSS = Family(
    tool_parsers=("seed_oss",),
    reasoning_parsers=("seed_oss",),
    tool_signs=("<seed:tool_call>",),
    reasoning_signs=("<seed:think>",),
    template=template_of(
        "<seed:bos>assistant\n",
        {
            "open_pattern": r"<seed:tool_call>\s*<function=(?P<name>[^>\s]+)\s*>|<function=(?P<name>[^>\s]+)\s*>",
            "close_pattern": r"</function>(?:\s*</seed:tool_call>)?|</seed:tool_call>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>(?P<value>.*?)</parameter>", "value_parser": ANY_JSON},
            "transform": NAMED,
            "writes": {
                "trigger": "<seed:tool_call>",
                "call": "<seed:tool_call>\n<function={name}>\n{arguments}</function>\n</seed:tool_call>",
                "parameter": "<parameter={key}>{value}</parameter>\n",
                "between": "\n",
            },
        },
        {**think(mark="seed:think"), "writes": {"close": "</seed:think>\n"}},
    ),
)

DEEPSEEK_V32 = Family(
    tool_parsers=("deepseek_v32",),
    tool_signs=("｜DSML｜",),
    template=template_of(
        "<｜Assistant｜>",
        {
            "open_pattern": r'<｜DSML｜invoke name="(?P<name>[^"]+)">',
            "close_pattern": r"</｜DSML｜invoke>|(?=</｜DSML｜function_calls>)",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r'<｜DSML｜parameter name="(?P<key>[^"]+)" string="(?:(?P<text>true)|false)">'
                r"(?P<value>.*?)</｜DSML｜parameter>",
                "value_parser": ANY_JSON,
            },
            "transform": NAMED,
            "writes": {
                "trigger": "<｜DSML｜function_calls>",
                "begin": "<｜DSML｜function_calls>\n",
                "call": '<｜DSML｜invoke name="{name}">\n{arguments}</｜DSML｜invoke>\n',
                "parameter": '<｜DSML｜parameter name="{key}" string="{text}">{value}</｜DSML｜parameter>\n',
                "between": "",
                "end": "</｜DSML｜function_calls>",
            },
        },
        think(),
        section=("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    ),
)
