"""Items of a request's input, and the conversation that they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from jaxserve.types import ChatMessage
from server.chat.conversation import arguments_of, call, match_results, with_reasoning
from server.http.unions import described


class InputPart(BaseModel):
    """A piece of a message's text: a user's, or what an earlier answer said."""

    model_config = ConfigDict(strict=True)

    type: Literal["input_text", "output_text", "text"]
    text: str


InputContent = Annotated[
    str | list[InputPart], described("a string or a list of {type: 'input_text', text: ...} parts; only text is supported")
]


class InputMessage(BaseModel):
    """One message of the input: what clients write, or an item of an earlier answer's output."""

    model_config = ConfigDict(strict=True)

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: InputContent


class InputCall(BaseModel):
    """A call that an earlier answer made."""

    model_config = ConfigDict(strict=True)

    type: Literal["function_call"]
    call_id: str
    name: str = Field(description="the function that was called")
    arguments: str = Field(description="JSON text of an object")


class InputResult(BaseModel):
    """What came of a call."""

    model_config = ConfigDict(strict=True)

    type: Literal["function_call_output"]
    call_id: str | None = Field(None, description="the call's, which is an item before")
    output: InputContent = Field(description="a text, whole or in parts")


class ThoughtPart(BaseModel):
    """A piece of what was thought."""

    model_config = ConfigDict(strict=True)

    type: Literal["reasoning_text"]
    text: str


class InputReasoning(BaseModel):
    """What an earlier answer thought, for templates that repeat it; summaries and what is encrypted have no effect."""

    model_config = ConfigDict(strict=True)

    type: Literal["reasoning"]
    content: list[ThoughtPart] | None = Field(None, description="what was thought")


_KINDS = ("message", "function_call", "function_call_output", "reasoning")


def _known(value: Any) -> Any:
    if _kind(value) not in _KINDS:
        raise PydanticCustomError("unknown_item", "must be one of {kinds}", {"kinds": ", ".join(_KINDS), "param": "type"})
    return value


def _kind(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    return "message" if kind is None else kind


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputResult, Tag("function_call_output")]
    | Annotated[InputReasoning, Tag("reasoning")],
    Discriminator(_kind),
    BeforeValidator(_known),
]


def conversation(instructions: str | None, given: str | Sequence[InputItem]) -> list[ChatMessage]:
    """The conversation as templates take it. Raises InvalidRequestError for calls and results that do not go together."""
    turns = _Turns()
    if instructions:
        turns.say("system", instructions, "instructions")
    if isinstance(given, str):
        turns.say("user", given, "input")
        return turns.messages
    for place, item in enumerate(given):
        path = f"input[{place}]"
        match item:
            case InputMessage(role="assistant"):
                turns.answer(_text(item.content), path)
            case InputMessage():
                # OpenAI's developer is the system of the models that came before it: their templates know no other.
                turns.say("system" if item.role == "developer" else item.role, _text(item.content), path)
            case InputCall():
                turns.call(call(item.call_id, item.name, arguments_of(item.arguments, f"{path}.arguments")), path)
            case InputResult():
                turns.result(item.call_id, _text(item.output), f"{path}.call_id")
            case InputReasoning():
                turns.think("".join(part.text for part in item.content or ()))
    turns.end()
    match_results(turns.messages, turns.paths)
    return turns.messages


def _text(content: InputContent) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


class _Turns:
    """Messages, each of several items if need be: what the assistant thought, said and called in one turn is one.

    Attributes:
        paths: what errors call each.
    """

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self.paths: list[str] = []
        self._thought: list[str] = []  # since the last item of another kind
        self._open: ChatMessage | None = None  # the assistant's turn, where the next call belongs

    def say(self, role: str, text: str, path: str) -> None:
        self.end()
        self._append({"role": role, "content": text}, path)

    def answer(self, text: str, path: str) -> None:
        """A text of the assistant's. Behind calls that wait for their results it is part of the same turn."""
        if self._open is None or "tool_calls" not in self._open:
            self._begin(text, path)
            return
        said = self._open["content"]
        self._open["content"] = f"{said}\n{text}" if said and text else said or text
        self._tell_thought(self._open)

    def call(self, made: dict[str, Any], path: str) -> None:
        if self._open is None:
            self._begin("", path)
        assert self._open is not None, "it has begun"
        self._tell_thought(self._open)
        self._open.setdefault("tool_calls", []).append(made)

    def result(self, call_id: str | None, text: str, path: str) -> None:
        self.end()
        told: ChatMessage = {"role": "tool", "content": text}
        if call_id is not None:
            told["tool_call_id"] = call_id
        self._append(told, path)

    def think(self, text: str) -> None:
        if text:
            self._thought.append(text)

    def end(self) -> None:
        """End the assistant's turn. One that was cut off in its thinking is a turn all the same."""
        if self._thought:
            self._begin("", "")
        self._open = None

    def _begin(self, text: str, path: str) -> None:
        self._open = {"role": "assistant", "content": text}
        self._tell_thought(self._open)
        self._append(self._open, path)

    def _tell_thought(self, message: ChatMessage) -> None:
        if self._thought:
            before = [message["reasoning"]] if "reasoning" in message else []
            with_reasoning(message, "\n".join([*before, *self._thought]))
            self._thought.clear()

    def _append(self, message: ChatMessage, path: str) -> None:
        self.messages.append(message)
        self.paths.append(path)
