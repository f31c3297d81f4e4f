"""Blocks of Anthropic's content: the events of a stream add up to the blocks of the whole answer."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.chat_parsing import ChatParser, ContentDelta, ReasoningDelta, Tool, ToolCallBegin
from jaxserve.chat_parsing import Delta as Part
from jaxserve.engine.events import Delta, Finished, Timing, Usage
from jaxserve.types import FinishReason
from server.chat.reading import ResponseReader
from server.http.messages.content import BlockEvents, content_of
from tests.support.scripted import HERMES

TOOLS = [Tool("f", {"type": "object"}), Tool("g", {"type": "object"})]
VALUES = st.dictionaries(st.text('ab{}"\\<>é', max_size=3), st.integers() | st.text("x</_lotca>\n", max_size=5), max_size=3)
CALLS = st.builds(lambda name, given: json.dumps({"name": name, "arguments": given}), st.sampled_from(["f", "g"]), VALUES)
FORGED = st.sampled_from(['{"name": "f", "arguments": 5}', '{"name": "f", "arguments": {"a": b}}', '{"name": "h"}', "x"])
PIECES = st.one_of(
    st.builds("<think>\n{}\n</think>\n\n".format, st.text("ab \n", max_size=4)),
    st.text("cd \n<", max_size=4),
    st.builds("<tool_call>\n{}\n</tool_call>".format, CALLS | FORGED),
)
RESPONSES = st.lists(PIECES, max_size=6).map("".join)


def parts_of(text: str, cuts: list[int], *, stopped: bool) -> list[Part]:
    """What the server reads of a text that comes in pieces."""
    assert HERMES is not None
    reader = ResponseReader(ChatParser(HERMES, tools=TOOLS), "toolu_")
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    parts: list[Part] = []
    for start, end in pairwise(places):
        parts += reader.add(Delta("r", 0, text[start:end], (1,), 0)).parts
    reason = FinishReason.STOP if stopped else FinishReason.LENGTH
    rest, _ = reader.finish(Finished("r", 0, reason, None, Usage(1, 1, 0), Timing(0.0, 0.0, 0.0)))
    return [*parts, *rest]


def added_up(parts: list[Part], *, omits_thinking: bool) -> list[dict[str, Any]]:
    """The blocks that a client makes of the events; of a call, with the text of its arguments as `input`."""
    events = BlockEvents(omits_thinking=omits_thinking)
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in [*(event for part in parts for event in events.add(part)), *events.finish()]:
        match event["type"], event.get("delta"):
            case "content_block_start", _:
                assert not is_open
                is_open = True
                blocks.append(dict(event["content_block"]))
                if blocks[-1]["type"] == "tool_use":
                    assert blocks[-1].pop("input") == {}
                    blocks[-1]["input"] = ""
            case "content_block_stop", _:
                is_open = False
            case "content_block_delta", {"type": "input_json_delta", "partial_json": text}:
                blocks[-1]["input"] += text
            case "content_block_delta", delta:
                assert delta is not None
                ((name, text),) = ((name, text) for name, text in delta.items() if name != "type")
                blocks[-1][name] += text
        assert event["index"] == len(blocks) - 1
    assert not is_open
    return blocks


@given(RESPONSES, st.lists(st.integers(min_value=0), max_size=8), st.booleans(), st.booleans())
def test_a_stream_adds_up_to_the_whole(text: str, cuts: list[int], stopped: bool, omits_thinking: bool) -> None:
    parts = parts_of(text, cuts, stopped=stopped)
    whole = msgspec.json.decode(msgspec.json.encode(content_of(parts, omits_thinking=omits_thinking)))
    calls = {block["id"] for block in whole if block["type"] == "tool_use"}
    assert all(name.startswith("toolu_") for name in calls)
    kept: list[dict[str, Any]] = []
    for block in added_up(parts, omits_thinking=omits_thinking):
        if block["type"] == "tool_use":
            if block["id"] in calls:
                kept.append(block | {"input": json.loads(block["input"])})
        elif kept and kept[-1]["type"] == block["type"]:  # a call that was none stood between them
            name = block["type"]
            kept[-1][name] += block[name]
        else:
            kept.append(block)
    assert (kept or [{"type": "text", "text": ""}]) == whole
    told = "".join(part.text for part in parts if isinstance(part, ContentDelta))
    assert "".join(block["text"] for block in whole if block["type"] == "text") == told
    if any(isinstance(part, ReasoningDelta) for part in parts):
        assert "thinking" in {block["type"] for block in whole}


def test_a_call_in_the_middle_of_which_the_answer_ends() -> None:
    parts = parts_of('<tool_call>{"name": "f", "arguments": {"a": 1', [], stopped=False)
    assert isinstance(parts[0], ToolCallBegin)
    assert content_of(parts, omits_thinking=False) == [{"type": "text", "text": ""}]
    (half,) = added_up(parts, omits_thinking=False)
    assert (half["type"], half["input"]) == ("tool_use", '{"a": 1')
