"""Bodies of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from jaxserve.sampling.params import MAX_LOGPROBS
from jaxserve.sampling.response import MAX_THINKING_TOKENS
from server.http.fields import EngineFields, ServiceTier, Stop, told
from server.http.numbers import Integer
from server.http.responses.items import InputItem
from server.http.responses.tools import FlatToolFields
from server.http.structured import FlatFormat, way_of
from server.http.tools import ThinkingFields
from server.structured import Way
from server.unsupported.table import OF_RESPONSES, Unsupported

LOGPROBS = "message.output_text.logprobs"


def _kind(value: Any) -> str:
    return "text" if isinstance(value, str) else "items"


InputField = Annotated[
    Annotated[str, Tag("text"), Field(json_schema_extra={"minLength": 1})]
    | Annotated[list[InputItem], Tag("items"), Field(json_schema_extra={"minItems": 1})],
    Discriminator(_kind),
]


class TextConfig(BaseModel):
    """How to write the answer."""

    model_config = ConfigDict(strict=True)

    format: FlatFormat | None = Field(None, description="what form the answer must have")
    verbosity: Literal["medium"] | None = None


class ReasoningConfig(BaseModel):
    """Whether to think before the answer, and how much. There are no summaries: the answer tells what was thought."""

    model_config = ConfigDict(strict=True)

    effort: str | None = Field(
        None, description="none, minimal, low, medium, high or another word that the model's chat template knows"
    )
    max_tokens: Integer | None = Field(
        None, json_schema_extra={"minimum": 0, "maximum": MAX_THINKING_TOKENS}, description="thinking_token_budget"
    )
    context: Literal["auto"] | None = Field(None, description="the chat template decides what it repeats of earlier thinking")


class ResponsesRequest(EngineFields, FlatToolFields, ThinkingFields):
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
                {
                    "input": [
                        {"role": "user", "content": "What is 1234 * 56?"},
                        {"type": "function_call", "call_id": "call_1", "name": "calculator", "arguments": '{"x": "1234 * 56"}'},
                        {"type": "function_call_output", "call_id": "call_1", "output": "69104"},
                    ],
                    "tools": [
                        {
                            "type": "function",
                            "name": "calculator",
                            "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
                        }
                    ],
                },
            ]
        }
    )

    own_unsupported: ClassVar[Mapping[str, Unsupported]] = OF_RESPONSES
    own_members: ClassVar[frozenset[str]] = frozenset({"text.format"})

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
    reasoning: ReasoningConfig | None = Field(None, description="whether to think before the answer, and how much")
    metadata: dict[str, str] | None = Field(None, description="told in the answer, without effect")
    user: str | None = Field(None, description="a tag of the client's own, without effect")
    service_tier: ServiceTier | None = Field(None, description="flex is the class batch, priority is interactive_paid")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="further variables of the chat template")

    def own_way(self) -> Iterator[Way]:
        return way_of(None if self.text is None else self.text.format, "text.format")

    def efforts(self) -> dict[str, str]:
        effort = None if self.reasoning is None else self.reasoning.effort
        return {**({"reasoning.effort": effort} if effort else {}), **super().efforts()}

    def budgets(self) -> dict[str, int]:
        budget = None if self.reasoning is None else self.reasoning.max_tokens
        return {**({} if budget is None else {"reasoning.max_tokens": budget}), **super().budgets()}

    def with_logprobs(self) -> bool:
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def sampling(self) -> dict[str, Any]:
        logprobs = (self.top_logprobs or 0) if self.with_logprobs() else None
        return {**super().sampling(), "max_tokens": self.max_output_tokens, "stop": self.stop, "logprobs": logprobs}
