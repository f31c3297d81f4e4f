"""Messages and their deltas, as chat completions have them."""

from __future__ import annotations

from collections.abc import Sequence

from jaxserve.chat_parsing import ContentDelta, Message, ReasoningDelta, ToolArgumentsDelta, ToolCallBegin, collect
from jaxserve.chat_parsing import Delta as Part
from server.http.replies import ChatDeltaReply, MessageReply, ToolCallDeltaReply


def message_reply(parts: Sequence[Part]) -> MessageReply:
    """The message of a response. A call that was cut off is none."""
    message: Message = collect(parts)
    calls = [call for call in message.tool_calls if call.complete]
    reply: MessageReply = {"role": "assistant", "content": message.content, "refusal": None}
    if message.content is None and not calls:
        reply["content"] = ""
    if message.reasoning is not None:
        reply["reasoning"] = reply["reasoning_content"] = message.reasoning
    if calls:
        reply["tool_calls"] = [
            {"id": call.id or "", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return reply


def delta_reply(part: Part) -> ChatDeltaReply | None:
    """What a chunk says of a part of the message; None where that is nothing."""
    match part:
        case ContentDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning": text, "reasoning_content": text}
        case ToolCallBegin(index, name, call_id):
            begun: ToolCallDeltaReply = {
                "index": index,
                "id": call_id or "",
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
            return {"tool_calls": [begun]}
        case ToolArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
    return None  # an end, which the next part or the finish reason tells
