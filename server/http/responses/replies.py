"""What POST /v1/responses answers, in OpenAI's shape."""

from __future__ import annotations

import time
from typing import Any, Literal, NotRequired, Required

from typing_extensions import TypedDict

from server.http.replies import ChatPositionReply, Reason
from server.http.responses.protocol import ResponsesRequest
from server.requests import RequestJob
from server.tally import Tally

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ReasoningTextReply(TypedDict):
    """What was thought."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItemReply(TypedDict):
    """Thinking before an answer or a call."""

    id: str
    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ReasoningTextReply]
    status: ItemStatus


class OutputTextReply(TypedDict):
    """The answer's text."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatPositionReply]


class OutputMessageReply(TypedDict):
    """A message of the answer, as a rule the only one."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputTextReply]


class FunctionCallReply(TypedDict):
    """A call of one of the tools."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItemReply = ReasoningItemReply | OutputMessageReply | FunctionCallReply


class InputTokensDetails(TypedDict):
    """More about the input's tokens."""

    cached_tokens: int


class OutputTokensReply(TypedDict):
    """More about the output's tokens."""

    reasoning_tokens: int


class ResponseUsageReply(TypedDict):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensReply
    total_tokens: int


class IncompleteReply(TypedDict):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"]


class FormatReply(TypedDict, total=False):
    """What form the answer has, as it was asked for."""

    type: Required[Literal["text", "json_object", "json_schema"]]
    name: str
    description: str
    schema: dict[str, Any]
    strict: bool


class TextReply(TypedDict):
    """How the answer is written."""

    format: FormatReply


class FlatToolReply(TypedDict):
    """A tool, as it was sent."""

    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class ReasoningConfigReply(TypedDict):
    """How much was to be thought."""

    effort: str | None
    summary: None


class FailureReply(TypedDict):
    """Why a stream broke off."""

    code: Literal["server_error"]
    message: str


class ResponseReply(TypedDict):
    """A response, begun or whole. Nothing is stored: `store` is false whatever a client would have it be."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    background: bool
    error: FailureReply | None
    incomplete_details: IncompleteReply | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItemReply]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: ReasoningConfigReply
    store: bool
    temperature: float
    text: TextReply
    tool_choice: str | dict[str, Any]
    tools: list[FlatToolReply | dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsageReply | None
    user: str | None
    metadata: dict[str, str]
    service_tier: NotRequired[str]


class Draft:
    """One response as it comes to be; `name` is the end of its id."""

    def __init__(self, body: ResponsesRequest, job: RequestJob, model: str) -> None:
        self.name = job.request_id.removeprefix("resp_")
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
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": next(iter(body.efforts().values()), None), "summary": None},
            "store": False,
            "temperature": job.params.temperature,
            "text": {"format": _format(body)},
            "tool_choice": body.chosen() or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": job.params.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
            "metadata": body.metadata or {},
            **body.tier(),  # type: ignore[typeddict-item]
        }

    def empty(self) -> ResponseReply:
        return self._empty

    def whole(self, output: list[OutputItemReply], reason: Reason, tally: Tally) -> ResponseReply:
        incomplete = reason == "length"
        return {
            **self._empty,
            "status": "incomplete" if incomplete else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
            "output": output,
            "usage": _usage(tally),
        }

    def failed(self, message: str) -> ResponseReply:
        return {**self._empty, "status": "failed", "error": {"code": "server_error", "message": message}}


def _format(body: ResponsesRequest) -> FormatReply:
    format = None if body.text is None else body.text.format
    given = [("type", "text")] if format is None else [(name.rstrip("_"), value) for name, value in format]
    return {name: value for name, value in given if value is not None}  # type: ignore[return-value]


def _usage(tally: Tally) -> ResponseUsageReply:
    return {
        "input_tokens": tally.prompt,
        "input_tokens_details": {"cached_tokens": tally.cached},
        "output_tokens": tally.completion,
        "output_tokens_details": {"reasoning_tokens": tally.reasoning},
        "total_tokens": tally.prompt + tally.completion,
    }
