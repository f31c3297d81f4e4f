"""Bodies of POST /v1/responses. Of the kinds of input, only messages of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from jaxserve.sampling.params import MAX_LOGPROBS
from jaxserve.types import ChatMessage
from server.http.fields import EngineFields, ServiceTier, Stop, described, told
from server.http.numbers import Integer
from server.unsupported.table import OF_RESPONSES, Unsupported

LOGPROBS = "message.output_text.logprobs"


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

    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


def _kind(value: Any) -> str:
    return "text" if isinstance(value, str) else "items"


InputField = Annotated[
    Annotated[str, Tag("text"), Field(json_schema_extra={"minLength": 1})]
    | Annotated[list[InputMessage], Tag("items"), Field(json_schema_extra={"minItems": 1})],
    Discriminator(_kind),
]


class PlainFormat(BaseModel):
    """The one way to write the answer."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]


class TextConfig(BaseModel):
    """How to write the answer: as plain text."""

    model_config = ConfigDict(strict=True)

    format: PlainFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesRequest(EngineFields):
    """Body of POST /v1/responses."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"input": "What is 17 + 25?", "temperature": 0, "max_output_tokens": 16},
                {
                    "instructions": "Answer in one word.",
                    "input": [{"role": "user", "content": [{"type": "input_text", "text": "Sort: pear, fig, apple"}]}],
                    "max_output_tokens": 16,
                    "stream": True,
                },
            ]
        }
    )

    own_unsupported: ClassVar[Mapping[str, Unsupported]] = OF_RESPONSES

    input: InputField
    instructions: str | None = Field(None, description="the system's message, before the input")
    max_output_tokens: Integer | None = told("tokens of the answer at most", minimum=1)
    stop: Stop | None = None
    include: (
        list[
            Literal[
                "message.output_text.logprobs",
                "reasoning.encrypted_content",
                "file_search_call.results",
                "web_search_call.results",
                "web_search_call.action.sources",
                "message.input_image.image_url",
                "computer_call_output.output.image_url",
                "code_interpreter_call.outputs",
            ]
        ]
        | None
    ) = Field(None, description="message.output_text.logprobs; of the others there is nothing to include")
    top_logprobs: Integer | None = told(
        "log-probabilities, and so many alternatives at each position", minimum=0, maximum=MAX_LOGPROBS
    )
    text: TextConfig | None = None
    metadata: dict[str, str] | None = Field(None, description="told in the answer, without effect")
    user: str | None = Field(None, description="a tag of the client's own, without effect")
    service_tier: ServiceTier | None = Field(None, description="flex is the class batch, priority is interactive_paid")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="further variables of the chat template")

    def with_logprobs(self) -> bool:
        """Whether the answer tells log-probabilities."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def sampling(self) -> dict[str, Any]:
        """The fields that SamplingParams knows, by its names."""
        logprobs = (self.top_logprobs or 0) if self.with_logprobs() else None
        return {**super().sampling(), "max_tokens": self.max_output_tokens, "stop": self.stop, "logprobs": logprobs}


def conversation(instructions: str | None, given: str | Sequence[InputMessage]) -> list[ChatMessage]:
    """The conversation as the engine's chat template takes it."""
    turns: list[ChatMessage] = (
        [{"role": "user", "content": given}] if isinstance(given, str) else [_turn(message) for message in given]
    )
    return [{"role": "system", "content": instructions}, *turns] if instructions else turns


def _turn(message: InputMessage) -> ChatMessage:
    role = "system" if message.role == "developer" else message.role  # as templates call it
    return {"role": role, "content": message.text()}
