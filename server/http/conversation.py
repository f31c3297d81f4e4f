"""Messages of a conversation as OpenAI's clients write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from jaxserve.errors import InvalidRequestError
from jaxserve.types import ChatMessage
from server.http.fields import described
from server.unsupported.check import reason
from server.unsupported.table import OF_MESSAGE


class TextPart(BaseModel):
    """A piece of a message's text."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


Content = Annotated[
    str | list[TextPart], described("a string or a list of {type: 'text', text: ...} parts; only text is supported")
]


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        if not isinstance(value, dict) or OF_MESSAGE.keys().isdisjoint(value):  # nearly every message, and there may be thousands
            return value
        for name, field in OF_MESSAGE.items():
            if not field.asks_nothing(value.get(name)):
                raise InvalidRequestError(f"{name} {reason(name, field)}", param=name)
        return value

    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


Messages = Annotated[list[Message], Field(json_schema_extra={"minItems": 1})]


def plain(messages: Iterable[Message]) -> list[ChatMessage]:
    """The messages as the engine's chat template takes them."""
    return [_plain(message) for message in messages]


def _plain(message: Message) -> ChatMessage:
    # OpenAI's developer is the system of the models that came before it: their templates know no other.
    role = "system" if message.role == "developer" else message.role
    written: ChatMessage = {"role": role, "content": message.text()}
    if message.name is not None:
        written["name"] = message.name
    return written
