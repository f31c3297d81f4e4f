"""Turns of a conversation and their blocks of content, as Anthropic's clients write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from jaxserve.errors import InvalidRequestError
from jaxserve.types import ChatMessage
from server.chat.conversation import call, match_results, with_reasoning
from server.http.unions import described

_FAILED = "the tool failed"  # for the model, where a result says no more than that


class TextBlock(BaseModel):
    """A piece of text. `cache_control` is ignored: whatever can be cached is."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


Texts = Annotated[
    str | list[TextBlock], described("a string or a list of {type: 'text', text: ...} blocks; only text is supported")
]


class ToolUseBlock(BaseModel):
    """A call that an earlier answer made."""

    model_config = ConfigDict(strict=True)

    type: Literal["tool_use"]
    id: str = Field(description="as the answer had it")
    name: str = Field(description="the tool that was called")
    input: dict[str, Any] = Field(description="the call's arguments")


class ToolResultBlock(BaseModel):
    """What came of a call."""

    model_config = ConfigDict(strict=True)

    type: Literal["tool_result"]
    tool_use_id: str = Field(description="the id of the call, which a message before has")
    content: Texts | None = Field(None, description="the result's text, whole or in blocks")
    is_error: bool | None = Field(None, description="the tool failed; the model is told so where there is no content")


class ThinkingBlock(BaseModel):
    """What an earlier answer thought, for templates that repeat it. `signature` is ignored."""

    model_config = ConfigDict(strict=True)

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(BaseModel):
    """What Anthropic's own models thought and do not show; it is left out."""

    model_config = ConfigDict(strict=True)

    type: Literal["redacted_thinking"]


_BLOCKS = ("text", "tool_use", "tool_result", "thinking", "redacted_thinking")


def _known(value: Any) -> Any:
    if not isinstance(value, dict) or value.get("type") not in _BLOCKS:
        raise PydanticCustomError("wrong_type", "must be one of {what}", {"what": ", ".join(_BLOCKS), "param": "type"})
    return value


def _how(content: Any) -> str | None:
    if isinstance(content, str):
        return "whole"
    return "in blocks" if isinstance(content, list) else None


Block = Annotated[
    TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock,
    Field(discriminator="type"),
    BeforeValidator(_known),
]
Content = Annotated[
    Annotated[str, Tag("whole")] | Annotated[list[Block], Tag("in blocks")],
    Discriminator(_how, custom_error_type="wrong_type", custom_error_message="must be a string or a list of blocks of content"),
]


class AnthropicMessage(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(strict=True)

    role: Literal["user", "assistant", "system"] = Field(description="system: instructions from here on, after a user's message")
    content: Content


Turns = Annotated[list[AnthropicMessage], Field(json_schema_extra={"minItems": 1})]

_SPEAKERS: Mapping[str, str] = MappingProxyType(
    {"tool_use": "assistant", "thinking": "assistant", "redacted_thinking": "assistant", "tool_result": "user"}
)


def conversation(system: str | Sequence[TextBlock] | None, turns: Sequence[AnthropicMessage]) -> list[ChatMessage]:
    """The conversation as templates take it: the results in a turn of the user's become messages before what the user says.

    A system message that comes first is a system prompt, after the field `system` if both are there.

    Raises InvalidRequestError for blocks in a turn of the wrong role, and for calls and results that do not go together.
    """
    found = [("", ChatMessage(role="system", content=_text(system)))] if system else []
    for place, turn in enumerate(turns):
        found += _messages(turn, f"messages[{place}].content")
    messages = [message for _, message in found]
    match_results(messages, [path for path, _ in found])
    if turns[-1].role == "assistant" and "tool_calls" in messages[-1]:
        path = f"messages[{len(turns) - 1}].content"
        raise InvalidRequestError(f"{path} has tool_use blocks: their results must come in a message after it", param=path)
    return messages


def _messages(turn: AnthropicMessage, path: str) -> Iterator[tuple[str, ChatMessage]]:
    """What a turn becomes; of results, with the path of what they answer."""
    if isinstance(turn.content, str):
        yield "", {"role": turn.role, "content": turn.content}
        return
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    has_results = False
    for place, block in enumerate(turn.content):
        where = f"{path}[{place}]"
        if _SPEAKERS.get(block.type, turn.role) != turn.role:
            what = f"{where}.type must not be {block.type} in a message of the role {turn.role}"
            raise InvalidRequestError(what, param=f"{where}.type")
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                calls.append(call(block.id, block.name, block.input))
            case ToolResultBlock():
                has_results = True
                result = _text(block.content or "") or (_FAILED if block.is_error else "")
                yield f"{where}.tool_use_id", {"role": "tool", "content": result, "tool_call_id": block.tool_use_id}
    if has_results and not any(texts):
        return
    written: ChatMessage = {"role": turn.role, "content": "\n".join(texts)}
    if calls:
        written["tool_calls"] = calls
    yield "", with_reasoning(written, "\n".join(filter(None, thoughts)))


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)
