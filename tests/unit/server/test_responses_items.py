"""Items of responses: of an input to a conversation, and of an output as it comes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from jaxserve.chat_parsing import ChatParser, Tool, find_template
from jaxserve.engine.events import Delta, Finished, PositionLogprobs, Started, Timing, TokenLogprob, Usage
from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import FinishReason, RequestOptions
from server.chat.reading import ResponseReader, read
from server.http.responses.items import InputItem, conversation
from server.http.responses.protocol import ResponsesRequest
from server.http.responses.replies import Draft
from server.http.responses.stream import ResponseStream
from server.requests import RequestJob
from server.streams import Events

TEMPLATE = find_template("<tool_call> </think>")
TOOLS = (Tool("f", {}), Tool("g", {}))
ITEMS: TypeAdapter[list[Any]] = TypeAdapter(list[InputItem])
WORDS = [
    "<think>",
    "</think>",
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "h", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": ',
    "<tool_call>",
    "</tool_call>",
    "say é",
    " ",
    "\n",
    "x",
]


def messages(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(message) for message in conversation(None, ITEMS.validate_python(list(items)))]


def called(call_id: str, arguments: str = '{"a": 1}') -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": "f", "arguments": arguments}


def answered(call_id: str | None, output: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def thought(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}] if text else None
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content, "encrypted_content": "gAAA", "status": None}


def said(text: str) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "commentary", "content": parts}


def calls(*ids: str) -> list[dict[str, Any]]:
    return [{"id": one, "type": "function", "function": {"name": "f", "arguments": {"a": 1}}} for one in ids]


def told(text: str) -> dict[str, str]:
    return {"reasoning": text, "reasoning_content": text, "thinking": text}


USER = {"role": "user", "content": "?"}


def test_calls_and_what_goes_before_them_are_one_message() -> None:
    assert messages(USER, thought("hm"), said("let me see"), called("1"), called("2"), answered("1"), answered("2")) == [
        USER,
        {"role": "assistant", "content": "let me see", "tool_calls": calls("1", "2"), **told("hm")},
        {"role": "tool", "content": "ok", "tool_call_id": "1", "name": "f"},
        {"role": "tool", "content": "ok", "tool_call_id": "2", "name": "f"},
    ]


def test_each_round_of_calls_is_a_message_and_so_is_each_answer() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    rounds = messages(
        USER, called("1"), answered("1", parts), thought("more"), called("2", ""), answered("2"), said("done"), said("!")
    )
    assert [(one["role"], one["content"]) for one in rounds] == [
        ("user", "?"),
        ("assistant", ""),
        ("tool", "a\nb"),
        ("assistant", ""),
        ("tool", "ok"),
        ("assistant", "done"),
        ("assistant", "!"),
    ]
    assert rounds[3] == {**rounds[3], **told("more")}
    assert rounds[3]["tool_calls"][0]["function"]["arguments"] == {}


def test_what_is_said_and_thought_around_calls_stays_in_their_turn() -> None:
    assert messages(thought("a"), said("x"), thought("b"), called("1"), said("y"), thought("c"), called("2"), answered("1")) == [
        {"role": "assistant", "content": "x\ny", "tool_calls": calls("1", "2"), **told("a\nb\nc")},
        {"role": "tool", "content": "ok", "tool_call_id": "1", "name": "f"},
    ]
    assert messages(USER, thought("cut off"), USER, thought("")) == [
        USER,
        {"role": "assistant", "content": "", **told("cut off")},
        USER,
    ]


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([USER, answered("1")], "input[1].call_id"),
        ([called("1"), answered("2")], "input[1].call_id"),
        ([called("1"), answered(None)], "input[1].call_id"),
        ([USER, called("1", "{")], "input[1].arguments"),
        ([called("1", "[1]")], "input[0].arguments"),
    ],
)
def test_calls_and_results_that_do_not_go_together(items: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(InvalidRequestError) as info:
        messages(*items)
    assert info.value.param == param


async def events_of(pieces: Sequence[bytes], reason: FinishReason) -> Events:
    """A token a piece; what is no whole character yet comes with the next."""
    yield 0, Started("r", (1, 2, 3), 2, 0.0)
    held = b""
    for position, piece in enumerate(pieces):
        held += piece
        try:
            text, held = held.decode(), b""
        except UnicodeDecodeError:
            text = ""
        logprobs = (PositionLogprobs(TokenLogprob(7, -1.0, 1, piece.decode("utf-8", "replace"), piece), ()),)
        yield 0, Delta("r", 0, text, (7,), position, logprobs)
    yield 0, Finished("r", 0, reason, None, Usage(3, len(pieces), 2), Timing(0.0, 0.0, 0.0))


async def streamed(pieces: Sequence[bytes], reason: FinishReason) -> list[dict[str, Any]]:
    assert TEMPLATE is not None
    template = TEMPLATE
    body = ResponsesRequest.model_validate({"input": "x"})
    job = RequestJob(request_id="resp_r", prompts=("x",), params=SamplingParams(), options=RequestOptions(), names={})
    events = read(events_of(pieces, reason), lambda: ResponseReader(ChatParser(template, tools=TOOLS)))
    frames = [frame.decode() async for frame in ResponseStream(Draft(body, job, "m")).frames(events)]
    return [json.loads(frame.split("\ndata: ")[1]) for frame in frames]


class Client:
    """Puts items together as a client does, and holds the events to OpenAI's order."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._text = ""
        self._logprobs: list[Any] = []

    def take(self, event: dict[str, Any]) -> None:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert self._open is None
            assert (event["output_index"], event["item"]["status"]) == (len(self.items), "in_progress")
            self._open, self._text, self._logprobs = event["item"], "", []
            return
        opened = self._open
        assert opened is not None
        assert event["output_index"] == len(self.items)
        assert event.get("item_id", opened["id"]) == opened["id"]
        if kind == "content_part.added":
            assert opened["content"] == [] == event["part"].get("logprobs", [])
            opened["content"] = [event["part"]]
        elif kind.endswith(".delta"):
            self._text += event["delta"]
            self._logprobs += event.get("logprobs", [])
        elif kind == "function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (self._text, opened["name"])
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert (event["text"], event.get("logprobs", [])) == (self._text, self._logprobs)
        elif kind == "content_part.done":
            more = {"logprobs": self._logprobs} if opened["type"] == "message" else {}
            opened["content"] = [{**opened["content"][0], "text": self._text, **more}]
            assert event["part"] == opened["content"][0]
        else:
            assert kind == "output_item.done"
            if opened["type"] == "function_call":
                opened["arguments"] = self._text
            opened["status"] = event["item"]["status"]
            assert event["item"] == opened
            self.items.append(opened)
            self._open = None

    def whole(self) -> list[dict[str, Any]]:
        assert self._open is None
        return [item for item in self.items if item["type"] != "function_call" or item["status"] == "completed"]


@given(words=st.lists(st.sampled_from(WORDS), max_size=7), sizes=st.lists(st.integers(1, 9), min_size=1), cut=st.booleans())
async def test_items_of_a_stream_are_those_of_the_whole_answer(words: list[str], sizes: list[int], cut: bool) -> None:
    text = "".join(words).encode()
    pieces: list[bytes] = []
    while text:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[:size])
        text = text[size:]
    first, second, *middle, last = await streamed(pieces, FinishReason.LENGTH if cut else FinishReason.STOP)
    assert [first["type"], second["type"]] == ["response.created", "response.in_progress"]
    assert [event["sequence_number"] for event in (first, second, *middle, last)] == list(range(len(middle) + 3))
    client = Client()
    for event in middle:
        client.take(event)
    assert last["type"] == ("response.incomplete" if cut else "response.completed")
    output = last["response"]["output"]
    assert client.whole() == output != []
    assert len({item["id"] for item in client.items}) == len(client.items)
    for item in output:
        if item["type"] == "function_call":
            assert isinstance(json.loads(item["arguments"]), dict)
        # A token of two items is told with one of them, and what was taken for thinking is told with none.
        # A marker that is text is told once if it comes twice in a row.
        if item["type"] == "message" and max(sizes) == 1 and not {"<think>", "<tool_call>"} & {*words}:
            part = item["content"][0]
            assert part["text"].strip().encode() in b"".join(bytes(one["bytes"]) for one in part["logprobs"])


async def test_log_probabilities_of_a_message_are_those_of_its_text() -> None:
    text = '<think>b</think>\n\nc <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\nd e'
    events = await streamed([bytes([one]) for one in text.encode()], FinishReason.STOP)
    parts = [item["content"][0] for item in events[-1]["response"]["output"] if item["type"] == "message"]
    found = [(part["text"].strip(), "".join(one["token"] for one in part["logprobs"])) for part in parts]
    assert found == [("c", "c"), ("d e", "d e")]


async def test_a_call_that_is_none_in_a_stream() -> None:
    events = await streamed([b'<tool_call>{"name": "f", "arguments": {"a": 1 2}}', b"</tool_call>"], FinishReason.STOP)
    told = [(event["type"].removeprefix("response."), event.get("output_index")) for event in events[2:-1]]
    assert told == [
        ("output_item.added", 0),
        ("function_call_arguments.delta", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        *[("output_text.delta", 1)] * (len(told) - 9),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
    ]
    assert events[4]["item"] == {**events[2]["item"], "status": "incomplete", "arguments": events[3]["delta"]}
    (item,) = events[-1]["response"]["output"]
    assert item["content"][0]["text"] == '<tool_call>{"name": "f", "arguments": {"a": 1 2}}</tool_call>'
