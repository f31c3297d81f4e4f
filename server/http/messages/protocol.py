"""Bodies of Anthropic's clients. Of the kinds of content, only text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from jaxserve.types import ChatMessage
from server.http.fields import EngineFields, StopList, described
from server.http.numbers import Integer
from server.unsupported.check import checked


class TextBlock(BaseModel):
    """A piece of text. `cache_control` is ignored: whatever can be cached is."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


Blocks = Annotated[
    str | list[TextBlock], described("a string or a list of {type: 'text', text: ...} blocks; only text is supported")
]


class AnthropicMessage(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(strict=True)

    role: Literal["user", "assistant"]
    content: Blocks


Turns = Annotated[list[AnthropicMessage], Field(json_schema_extra={"minItems": 1})]


class Metadata(BaseModel):
    """A tag of the client's own, without effect."""

    model_config = ConfigDict(strict=True)

    user_id: str | None = None


class MessagesRequest(EngineFields):
    """Body of POST /v1/messages."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"max_tokens": 16, "messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0},
                {
                    "max_tokens": 16,
                    "system": "Answer in one word.",
                    "messages": [{"role": "user", "content": [{"type": "text", "text": "Sort: pear, fig, apple"}]}],
                    "stream": True,
                },
            ]
        }
    )

    messages: Turns = Field(description="the last may be the assistant's: the answer then goes on with it")
    max_tokens: Integer = Field(json_schema_extra={"minimum": 1}, description="tokens of the answer at most")
    system: Blocks | None = None
    stop_sequences: StopList | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def sampling(self) -> dict[str, Any]:
        """The fields that SamplingParams knows, by its names."""
        return {**super().sampling(), "max_tokens": self.max_tokens, "stop": self.stop_sequences}


class CountTokensRequest(BaseModel):
    """Body of POST /v1/messages/count_tokens."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"messages": [{"role": "user", "content": "What is 17 + 25?"}]}]},
    )

    model: str | None = None
    messages: Turns
    system: Blocks | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_unsupported(cls, value: Any) -> Any:
        return checked(value, cls.model_fields, of_prompt=True) if isinstance(value, dict) else value


def conversation(system: str | Sequence[TextBlock] | None, messages: Sequence[AnthropicMessage]) -> list[ChatMessage]:
    """The conversation as the engine's chat template takes it."""
    turns: list[ChatMessage] = [{"role": message.role, "content": _text(message.content)} for message in messages]
    return [{"role": "system", "content": _text(system)}, *turns] if system else turns


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)
