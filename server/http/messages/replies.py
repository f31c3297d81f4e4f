"""What Anthropic's clients are answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from server.http.replies import Reason
from server.tally import Tally

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlockReply(TypedDict):
    """The answer's text."""

    type: Literal["text"]
    text: str


class ThinkingBlockReply(TypedDict):
    """What was thought before the answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlockReply(TypedDict):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": True})]


ContentBlockReply = TextBlockReply | ThinkingBlockReply | ToolUseBlockReply


class MessageTokensDetails(TypedDict):
    """More about the answer's tokens."""

    thinking_tokens: int


class MessageUsageReply(TypedDict):
    """Token counts. A prompt has input_tokens + cache_read_input_tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: NotRequired[MessageTokensDetails]


class AnthropicMessageReply(TypedDict):
    """A whole answer, or what is known of it when it begins."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlockReply]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsageReply


class TokenCountReply(TypedDict):
    """Tokens of a prompt."""

    input_tokens: int


def usage_of(tally: Tally) -> MessageUsageReply:
    """The counts in Anthropic's shape. What is written to the cache costs nothing, so it is counted as input."""
    usage: MessageUsageReply = {
        "input_tokens": tally.prompt - tally.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tally.cached,
        "output_tokens": tally.completion,
    }
    if tally.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": tally.reasoning}
    return usage


def stop_reason(reason: Reason, matched: str | None) -> StopReason:
    """Why the answer ended; `matched` is the stop sequence that ended it."""
    if reason == "tool_calls":
        return "tool_use"
    if matched is not None:
        return "stop_sequence"
    return "max_tokens" if reason == "length" else "end_turn"
