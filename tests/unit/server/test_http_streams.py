"""Typed events of streams whose tokens do not all have a text."""

import json
from collections.abc import AsyncGenerator
from typing import Any

from jaxserve.engine.events import Delta, Finished, Started, Timing, Usage
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import FinishReason, RequestOptions
from server.chat.reading import ResponseReader
from server.chat.reading import read as told
from server.http.messages.replies import AnthropicMessageReply, usage_of
from server.http.messages.stream import frames
from server.http.responses.protocol import ResponsesRequest
from server.http.responses.replies import Draft
from server.http.responses.stream import ResponseStream
from server.requests import RequestJob
from server.streams import Events
from server.tally import Tally

EMPTY: AnthropicMessageReply = {
    "id": "msg_r",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": usage_of(Tally()),
}


async def held_back() -> Events:
    """Two tokens whose text comes with the second, and one that ends the sequence without a text."""
    yield 0, Started("r", (1, 2, 3), 2, 0.0)
    for position, text in enumerate(["", "é", ""]):
        yield 0, Delta("r", 0, text, (7,), position)
    yield 0, Finished("r", 0, FinishReason.STOP, 7, Usage(3, 3, 2), Timing(0.0, 0.0, 0.0))


async def read(frames: AsyncGenerator[bytes, None]) -> list[dict[str, Any]]:
    events = []
    async for frame in frames:
        name, data = frame.decode().removesuffix("\n\n").split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


async def test_messages_tell_text_only() -> None:
    events = await read(frames(told(held_back(), lambda: ResponseReader(None)), EMPTY))
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == [{"type": "text_delta", "text": "é"}]
    assert events[0]["message"]["usage"] == {**EMPTY["usage"], "input_tokens": 1, "cache_read_input_tokens": 2}
    last = events[-2]
    assert (last["delta"], last["usage"]["output_tokens"]) == ({"stop_reason": "end_turn", "stop_sequence": None}, 3)


async def test_responses_tell_text_only() -> None:
    body = ResponsesRequest.model_validate({"input": "x"})
    job = RequestJob(request_id="resp_r", prompts=("x",), params=SamplingParams(), options=RequestOptions(), names={})
    events = await read(ResponseStream(Draft(body, job, "m")).frames(told(held_back(), lambda: ResponseReader(None))))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == ["é"]
    assert [event["sequence_number"] for event in events] == list(range(9))
    whole = events[-1]["response"]
    assert (whole["status"], whole["usage"]["output_tokens"], whole["usage"]["input_tokens"]) == ("completed", 3, 3)
    assert whole["output"][0]["id"] == events[3]["item_id"] == "msg_r"
