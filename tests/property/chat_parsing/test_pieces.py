"""A response in pieces of any size is the response as a whole, whatever stands in it."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.chat_parsing import ChatParser, collect, load_template, parse, read_tools
from jaxserve.chat_parsing.families import FAMILIES, HERMES
from jaxserve.chat_parsing.family import Family
from tests.unit.chat_parsing.transcripts import TOOLS, TRANSCRIPTS, template_of

TOOL_SET = read_tools(TOOLS)
ODDS = [
    "{", "}", '"', "[", "]", " ", "\n", "a", "é", "now", "get_weather", '{"name": "now"', '"arguments": {}', "city", "\\",
    ",", ":", "(", ")", "'", "<", "<|", "```", "=", "None",
]  # fmt: skip


def markup(value: Any) -> Iterator[str]:
    """The texts of a template that are markers, and the ways it writes calls."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from markup(item)
    elif isinstance(value, list):
        for item in value:
            yield from markup(item)
    elif isinstance(value, str) and "(?" not in value:
        yield value.replace("{name}", "now").replace("{arguments}", "{}")


@st.composite
def responses(draw: st.DrawFn, family: Family) -> str:
    """Anything made of the family's markup, or a transcript with bits of it changed."""
    pieces = st.sampled_from([*ODDS, *markup(family.template["fields"])])
    texts = [transcript.text for transcript in TRANSCRIPTS if transcript.tool_call_parser in family.tool_parsers]
    text = draw(st.one_of(st.sampled_from(texts), st.lists(pieces, max_size=20).map("".join)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.one_of(st.just(""), pieces)) + text[at + draw(st.integers(0, 5)) :]
    return text


def cut(data: st.DataObject, text: str) -> Iterator[str]:
    largest = data.draw(st.sampled_from([1, 3, 12]))
    at = 0
    while at < len(text):
        size = data.draw(st.integers(1, largest))
        yield text[at : at + size]
        at += size


@pytest.mark.parametrize("family", FAMILIES, ids=lambda item: item.tool_parsers[0])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_pieces_make_the_same_message_as_the_whole(family: Family, data: st.DataObject) -> None:
    template = load_template(family.template)
    text = data.draw(responses(family))
    stopped = data.draw(st.booleans())
    tools = data.draw(st.sampled_from([TOOL_SET, None, ()]))
    parser = ChatParser(template, tools=tools)
    deltas = [delta for piece in cut(data, text) for delta in parser.feed(piece)] + parser.finish(stopped=stopped)
    assert collect(deltas) == parse(template, text, tools=tools, stopped=stopped)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11])
def test_transcripts_in_pieces_of_each_size(size: int) -> None:
    for transcript in TRANSCRIPTS:
        parser = ChatParser(template_of(transcript), prompt=transcript.prompt, tools=TOOL_SET)
        pieces = (transcript.text[at : at + size] for at in range(0, len(transcript.text), size))
        assert collect([delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()) == transcript.message


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="ab <>/\n", max_size=40), call=st.booleans())
def test_text_beside_calls_is_all_there(text: str, call: bool) -> None:
    template = load_template(HERMES.template)
    written = '<tool_call>{"name": "now"}</tool_call>' if call else ""
    message = parse(template, f"{text}{written}{text}", tools=TOOL_SET)
    assert (message.content or "") == f"{text}{text}".strip()
    assert len(message.tool_calls) == call
