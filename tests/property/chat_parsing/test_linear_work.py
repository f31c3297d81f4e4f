"""Parsers examine each character a bounded number of times, however the text is cut and whatever it consists of."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from jaxserve.chat_parsing import (
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
    ChatParser,
    ResponseTemplate,
    find_template,
    load_template,
    read_tools,
)
from jaxserve.chat_parsing.automaton import Pattern
from jaxserve.chat_parsing.families import FAMILIES
from jaxserve.chat_parsing.template import Field, Marker
from tests.property.chat_parsing.test_pieces import markup
from tests.unit.chat_parsing.transcripts import TOOLS, TRANSCRIPTS, template_of

LENGTH = 100_000
SHORT = 6_000
MOST = 8  # examinations per character
TOOL_SET = read_tools(TOOLS)
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}

OWN_TEMPLATES: dict[str, dict[str, Any]] = {  # as a checkpoint may bring them
    "lines": {"open_pattern": r"<(?P<name>\w+)>", "close": "</>", "content": "kv-lines", "transform": NAMED},
    "repeated tags": {
        "open_pattern": r"<(?P<name>\w+)>", "close": "</>", "content": "xml-inline", "transform": NAMED,
        "content_args": {"tag_pattern": r"\[(?P<key>\w)\](?P<value>.*?);", "merge_duplicates": True},
    },
    "white space first": {
        "open_pattern": r"\s*\[\s*(?P<name>\w+)\s*\]\s*(?=\{)", "close_pattern": r"\s*\[/\s*\]\s*",
        "content": "json", "transform": NAMED,
    },
}  # fmt: skip

TEMPLATES = {
    **{f"{family.tool_parsers[0]} {n}": load_template(family.template) for n, family in enumerate(FAMILIES)},
    **{name: load_template({"start_anchor": "A:", "fields": {"tool_calls": spec}}) for name, spec in OWN_TEMPLATES.items()},
}
REASONING = {name: find_template("", tool_call_parser="none", reasoning_parser=name) for name in REASONING_PARSERS}
COMPOSED = {  # a format of calls behind the thinking of another one
    name: find_template("", tool_call_parser=name, reasoning_parser="deepseek_r1")
    for name in ("pythonic", "llama3_json", "mistral")
}


def markers(template: ResponseTemplate) -> list[str]:
    texts = [text for text in markup(template.spec["fields"]) if text.strip() and len(text) > 1]
    return sorted({*texts, "{", "[", '"', "\\", "<", "'", "(", ": ", ', "a'}, key=len)


def halves(template: ResponseTemplate) -> list[str]:
    texts = [text for text in markers(template) if len(text) > 1]
    return [text[: (len(text) + 1) // 2] for text in texts] + [text[len(text) // 2 :] for text in texts]


def pieces(text: str, largest: int) -> Iterator[str]:
    sizes = random.Random(largest)
    at = 0
    while at < len(text):
        size = sizes.randint(1, largest)
        yield text[at : at + size]
        at += size


def examined(template: ResponseTemplate, text: str, largest: int) -> int:
    parser = ChatParser(template, tools=TOOL_SET)
    for piece in pieces(text, largest):
        parser.feed(piece)
    kept = longest_text(parser)
    assert kept <= max(largest, 128), f"the parser keeps a text of {kept} characters outside of its streams"
    parser.finish()
    return parser.meter.examined


def longest_text(root: object) -> int:
    """The length of the longest text that is an attribute of a parser or its parts: one that is extended piece by piece."""
    longest, seen, pending = 0, set[int](), [root]
    while pending:
        item = pending.pop()
        if id(item) in seen or isinstance(item, ResponseTemplate | Field | Marker | Pattern | type):
            continue
        seen.add(id(item))
        if isinstance(item, dict | list | tuple):
            pending += [part for part in (item.values() if isinstance(item, dict) else item) if not isinstance(part, str)]
        elif type(item).__module__.startswith("jaxserve.chat_parsing"):
            slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
            values = [*getattr(item, "__dict__", {}).values(), *(getattr(item, name, None) for name in slots)]
            longest = max([longest, *(len(value) for value in values if isinstance(value, str))])
            pending += [value for value in values if not isinstance(value, str)]
    return longest


def repeated(texts: list[str], length: int) -> str:
    """Each of the texts again and again, for an equal part of the length."""
    part = length // len(texts) + 1
    return "".join((text * (part // len(text) + 1))[:part] for text in texts)[:length]


def filler(kind: str, template: ResponseTemplate, length: int) -> str:
    texts = {"white space": [" ", "\n"], "markers": markers(template), "half markers": halves(template)}[kind]
    return repeated(texts, length)


KINDS = ("white space", "markers", "half markers")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_each_character_is_examined_at_most_8_times(name: str, kind: str) -> None:
    text = filler(kind, TEMPLATES[name], LENGTH)
    assert examined(TEMPLATES[name], text, 64) <= MOST * len(text)


@pytest.mark.parametrize("kind", KINDS)
def test_templates_of_reasoning_and_composed_ones_examine_as_little(kind: str) -> None:
    for name, template in (REASONING | COMPOSED).items():
        assert template is not None
        text = filler(kind, template, SHORT)
        assert examined(template, text, 64) <= MOST * len(text), name


@pytest.mark.parametrize("largest", [1, 64])
def test_calls_that_never_end_cost_as_little(largest: int) -> None:
    for n, transcript in enumerate(TRANSCRIPTS):
        template = template_of(transcript)
        for tenth, kind in ((3 + n % 3, "white space"), (6 + n % 3, "half markers")):
            text = transcript.text[: len(transcript.text) * tenth // 10] + filler(kind, template, SHORT if largest > 1 else 600)
            # A string between marks has its line ends and quotes escaped: what follows reads twice as many characters.
            assert examined(template, text, largest) <= (MOST + 2) * len(text), transcript.tool_call_parser


@pytest.mark.parametrize(
    ("parser", "begin", "unit"),
    [
        ("lfm2", "<|tool_call_start|>[", "now(a='x'], "),
        ("lfm2", "<|tool_call_start|>[", "now(a=07), "),
        ("olmo3", "<function_calls>", "now('a',\n"),
        ("granite", "<|tool_call|>[", '{"name": "x", "arguments": {}}, '),
        ("xlam", "", '[{"name": "now" '),
        ("llama3_json", "", '{"name": "now", "parameters": {}} x '),
        ("hermes", "", '<tool_call>{"name": "now", "arguments": {"a": "x</tool_call>'),
        ("qwen3_coder", "", "<function=now><parameter=a>\n<parameter=b>"),
        ("qwen3_coder", "", "<function=get_weather><parameter=city>\n</function></tool_call>"),
        ("glm47", "", "<tool_call>now<arg_key>a</arg_key><arg_value>\n"),
        ("mistral", "", "[TOOL_CALLS]now{', '} "),
    ],
)
def test_broken_calls_are_read_again_only_once(parser: str, begin: str, unit: str) -> None:
    template = find_template("", tool_call_parser=parser, reasoning_parser="none")
    assert template is not None
    text = (begin + unit * SHORT)[:SHORT]
    assert examined(template, text, 64) <= (MOST + 2) * len(text)


def test_a_whole_text_costs_no_more_than_its_pieces() -> None:
    for name, template in TEMPLATES.items():
        text = filler("markers", template, SHORT)
        assert examined(template, text, len(text)) <= 2 * MOST * len(text), name


def test_every_registered_parser_is_among_them() -> None:
    families = {name for family in FAMILIES for name in family.tool_parsers}
    assert set(TOOL_CALL_PARSERS) <= families
