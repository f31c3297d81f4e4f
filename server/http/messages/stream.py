"""The events of a streamed answer, as Anthropic names them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from jaxserve.engine.events import Finished, Started
from jaxserve.errors import JaxserveError
from server.events import ReadDelta
from server.http.error_bodies import body_of
from server.http.generation import matched_text, reason_of
from server.http.messages.content import BlockEvents
from server.http.messages.replies import AnthropicMessageReply, stop_reason, usage_of
from server.http.sse import event_frame
from server.streams import Events
from server.tally import Tally


async def frames(events: Events, message: AnthropicMessageReply, *, omits_thinking: bool = False) -> AsyncGenerator[bytes, None]:
    """The SSE frames of an answer to one prompt; `message` is the answer before anything is known of it."""
    tally = Tally()
    blocks = BlockEvents(omits_thinking=omits_thinking)
    async with aclosing(events):
        async for _, event in events:
            tally.add(event)
            if isinstance(event, Started):
                yield event_frame({"type": "message_start", "message": {**message, "usage": usage_of(tally)}})
                yield event_frame({"type": "ping"})
            elif isinstance(event, Finished):
                for made in blocks.finish():
                    yield event_frame(made)
                matched = matched_text(event)
                ended = {"stop_reason": stop_reason(reason_of(event), matched), "stop_sequence": matched}
                yield event_frame({"type": "message_delta", "delta": ended, "usage": usage_of(tally)})
            else:
                assert isinstance(event, ReadDelta), "events of chats are read"
                for part in event.parts:
                    for made in blocks.add(part):
                        yield event_frame(made)
    yield event_frame({"type": "message_stop"})


def failure_frame(error: JaxserveError, path: str) -> bytes:
    return event_frame(body_of(error, path))
