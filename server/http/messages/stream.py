"""The events of a streamed answer, as Anthropic names them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from jaxserve.engine.events import Delta, Started
from jaxserve.errors import JaxserveError
from server.http.error_bodies import body_of
from server.http.generation import Tally, matched_text, reason_of
from server.http.messages.replies import AnthropicMessageReply, stop_reason, usage_of
from server.http.sse import event_frame
from server.streams import Events


async def frames(events: Events, message: AnthropicMessageReply) -> AsyncGenerator[bytes, None]:
    """The SSE frames of an answer to one prompt; `message` is the answer before anything is known of it."""
    tally = Tally()
    async with aclosing(events):
        async for _, event in events:
            tally.add(event)
            if isinstance(event, Started):
                yield event_frame({"type": "message_start", "message": {**message, "usage": usage_of(tally)}})
                yield event_frame({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
                yield event_frame({"type": "ping"})
            elif isinstance(event, Delta):
                if event.text:
                    yield event_frame(_addition(event.text))
            else:
                matched = matched_text(event)
                ended = {"stop_reason": stop_reason(reason_of(event), matched), "stop_sequence": matched}
                yield event_frame({"type": "content_block_stop", "index": 0})
                yield event_frame({"type": "message_delta", "delta": ended, "usage": usage_of(tally)})
    yield event_frame({"type": "message_stop"})


def failure_frame(error: JaxserveError, path: str) -> bytes:
    """The last event of a stream that failed."""
    return event_frame(body_of(error, path))


def _addition(text: str) -> Mapping[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
