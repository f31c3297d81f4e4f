"""What POST /v1/responses answers, in OpenAI's shape."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from jaxserve.engine.events import PositionLogprobs
from server.http.generation import Tally
from server.http.logprobs import chat_logprobs
from server.http.replies import ChatPositionReply, Reason
from server.http.responses.protocol import ResponsesRequest
from server.requests import Job

Status = Literal["in_progress", "completed", "incomplete"]


class OutputTextReply(TypedDict):
    """The answer's text."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatPositionReply]


class OutputMessageReply(TypedDict):
    """The answer's one message."""

    id: str
    type: Literal["message"]
    status: Status
    role: Literal["assistant"]
    content: list[OutputTextReply]


class InputTokensDetails(TypedDict):
    """More about the input's tokens."""

    cached_tokens: int


class OutputTokensDetails(TypedDict):
    """More about the output's tokens."""

    reasoning_tokens: int


class ResponseUsageReply(TypedDict):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteReply(TypedDict):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"]


class FormatReply(TypedDict):
    """How the answer is written."""

    type: Literal["text"]


class TextReply(TypedDict):
    """How the answer is written."""

    format: FormatReply


class ResponseReply(TypedDict):
    """A response, begun or whole. Nothing is stored: `store` is false whatever a client would have it be."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    background: bool
    error: None
    incomplete_details: IncompleteReply | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputMessageReply]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: None
    store: bool
    temperature: float
    text: TextReply
    tool_choice: Literal["none"]
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsageReply | None
    user: str | None
    metadata: dict[str, str]
    service_tier: NotRequired[str]


class Draft:
    """One response as it comes to be.

    Attributes:
        item_id: the message's id.
    """

    def __init__(self, body: ResponsesRequest, job: Job, model: str) -> None:
        self.item_id = "msg_" + job.request_id.removeprefix("resp_")
        self._empty: ResponseReply = {
            "id": job.request_id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": model,
            "output": [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": None,
            "store": False,
            "temperature": job.params.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": job.params.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
            "metadata": body.metadata or {},
            **body.tier(),  # type: ignore[typeddict-item]
        }

    def empty(self) -> ResponseReply:
        """The response before its message."""
        return self._empty

    def message(self, status: Status, content: list[OutputTextReply]) -> OutputMessageReply:
        """The message."""
        return {"id": self.item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def whole(self, text: OutputTextReply, reason: Reason, tally: Tally) -> ResponseReply:
        """The response when all is known."""
        status = status_of(reason)
        return {
            **self._empty,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": [self.message(status, [text])],
            "usage": _usage(tally),
        }


def status_of(reason: Reason) -> Status:
    """What the end of the sequence makes of the response."""
    return "incomplete" if reason == "length" else "completed"


def output_text(text: str, logprobs: Sequence[PositionLogprobs]) -> OutputTextReply:
    """The message's content."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": chat_logprobs(logprobs)["content"]}


def _usage(tally: Tally) -> ResponseUsageReply:
    return {
        "input_tokens": tally.prompt,
        "input_tokens_details": {"cached_tokens": tally.cached},
        "output_tokens": tally.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tally.prompt + tally.completion,
    }
