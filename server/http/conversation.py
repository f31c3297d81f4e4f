"""Messages of a conversation as OpenAI's clients write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from jaxserve.errors import InvalidRequestError
from jaxserve.types import ChatMessage
from server.chat.conversation import arguments_of, call, match_results, with_reasoning
from server.http.unions import described
from server.unsupported.check import reason
from server.unsupported.table import OF_MESSAGE


class TextPart(BaseModel):
    """A piece of a message's text."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class CalledFunction(BaseModel):
    """The function that was called."""

    model_config = ConfigDict(strict=True)

    name: str
    arguments: str = Field(description="JSON text of an object")


class MadeCall(BaseModel):
    """A call that an earlier answer made."""

    model_config = ConfigDict(strict=True)

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction = Field(description="what was called")


Content = Annotated[
    str | list[TextPart], described("a string or a list of {type: 'text', text: ...} parts; only text is supported")
]


def _shape(roles: list[str], required: list[str], **fields: Any) -> dict[str, Any]:
    role = {"enum": roles, "description": "whose message it is"}
    return {"required": ["role", *required], "properties": {"role": role, **fields}}


_TEXT: dict[str, Any] = {"not": {"type": "null"}, "description": "a text"}
_CALLS: dict[str, Any] = {"type": "array", "minItems": 1, "description": "calls"}
_NOTHING: dict[str, Any] = {"enum": [None, []], "description": "nothing"}
_ID: dict[str, Any] = {"type": "string", "description": "the call's"}
# What goes with which role. `_plain` checks it; the document of the API only tells it.
_SHAPES = [
    _shape(["assistant"], ["tool_calls"], tool_calls=_CALLS, tool_call_id=_NOTHING),
    _shape(["tool"], ["content", "tool_call_id"], content=_TEXT, tool_call_id=_ID, tool_calls=_NOTHING),
    _shape(
        ["system", "developer", "user", "assistant"],
        ["content"],
        content=_TEXT,
        tool_calls=_NOTHING,
        tool_call_id=_NOTHING,
    ),
]


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True, json_schema_extra={"anyOf": [*_SHAPES]})

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = Field(None, description="only where there are tool_calls it may be left out")
    name: str | None = None
    tool_calls: list[MadeCall] | None = Field(None, description="of the assistant: calls that an earlier answer made")
    tool_call_id: str | None = Field(None, description="of a tool: the id of the call that this is the result of")
    reasoning: str | None = Field(None, description="of the assistant: what it thought, for templates that repeat it")
    reasoning_content: str | None = Field(None, description="reasoning")

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        if not isinstance(value, dict) or OF_MESSAGE.keys().isdisjoint(value):  # nearly every message, and there may be thousands
            return value
        for name, field in OF_MESSAGE.items():
            if not field.asks_nothing(value.get(name)):
                raise InvalidRequestError(f"{name} {reason(name, field)}", param=name)
        return value

    @model_validator(mode="after")
    def _has_content(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise PydanticCustomError("nothing", "is required", {"param": "content"})
        return self

    def parts(self) -> str | list[dict[str, Any]]:
        """The content as chat templates take it."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return [{"type": "text", "text": part.text} for part in self.content]


Messages = Annotated[list[Message], Field(json_schema_extra={"minItems": 1})]


def plain(messages: Iterable[Message]) -> list[ChatMessage]:
    """The conversation as templates take it. Raises InvalidRequestError for calls and results that do not go together."""
    found = [_plain(message, place) for place, message in enumerate(messages)]
    match_results(found, [f"messages[{place}].tool_call_id" for place in range(len(found))])
    return found


def _plain(message: Message, place: int) -> ChatMessage:
    # OpenAI's developer is the system of the models that came before it: their templates know no other.
    role = "system" if message.role == "developer" else message.role
    written: ChatMessage = {"role": role, "content": message.parts()}
    for name, of in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
        if getattr(message, name) and message.role != of:
            path = f"messages[{place}].{name}"
            raise InvalidRequestError(f"{path} must be left out of a message of the role {message.role}", param=path)
    if message.name is not None:
        written["name"] = message.name
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        path = f"messages[{place}].tool_calls"
        written["tool_calls"] = [
            call(made.id, made.function.name, arguments_of(made.function.arguments, f"{path}[{index}].function.arguments"))
            for index, made in enumerate(message.tool_calls)
        ]
    return with_reasoning(written, message.reasoning or message.reasoning_content)
