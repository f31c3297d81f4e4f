"""Bodies of Anthropic's clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from server.chat.asked import AskedChat
from server.http.fields import EngineFields, StopList
from server.http.messages.blocks import Texts, Turns, conversation
from server.http.messages.context import ContextManagement
from server.http.messages.tools import (
    AnthropicTool,
    AnthropicToolChoice,
    Effort,
    ThinkingConfig,
    asked_thinking,
    asked_tools,
    names_of_tools,
)
from server.http.numbers import Integer
from server.http.structured import AnthropicFormat, way_of
from server.requests import check_not_empty, template_arguments
from server.structured import Form, Way
from server.unsupported.check import checked

_MEMBERS = frozenset({"output_config.effort"})  # of objects, by their path, that other endpoints do not have


class Metadata(BaseModel):
    """A tag of the client's own, without effect."""

    model_config = ConfigDict(strict=True)

    user_id: str | None = None


class OutputConfig(BaseModel):
    """How to write the answer."""

    model_config = ConfigDict(strict=True)

    format: AnthropicFormat | None = Field(None, description="JSON that satisfies a schema; any text by default")
    effort: Effort | None = Field(None, description="how much to think, for models whose chat template knows it")


class PromptFields(BaseModel):
    """What becomes a prompt."""

    model_config = ConfigDict(strict=True)

    messages: Turns = Field(description="the last may be the assistant's: the answer then goes on with it")
    system: Texts | None = None
    tools: list[AnthropicTool] | None = Field(None, description="what the model may call")
    tool_choice: AnthropicToolChoice | None = Field(None, description="whether to call; auto by default")
    thinking: ThinkingConfig | None = Field(None, description="whether to think before the answer; as the model likes by default")
    output_config: OutputConfig | None = Field(None, description="how to write the answer")
    context_management: ContextManagement | None = Field(
        None, description="what to clear of a long conversation; refused where it would clear something"
    )

    def asked(self, form: Form) -> AskedChat:
        """Raises InvalidRequestError for what does not go together."""
        check_not_empty(self.messages, "messages")
        goes_on = self.messages[-1].role == "assistant"
        effort = None if self.output_config is None else self.output_config.effort
        return AskedChat(
            messages=conversation(self.system, self.messages),
            arguments=template_arguments({}, "", add_generation_prompt=None, continue_final_message=goes_on),
            tools=asked_tools(self.tools or (), self.tool_choice),
            thinking=asked_thinking(self.thinking, effort),
            form=form,
            folds_system=True,
        )

    def names(self) -> dict[str, str]:
        """For errors, what the client calls the parameters that it does not call as others do."""
        return {"max_thinking_tokens": "thinking.budget_tokens", **names_of_tools(self.tools or (), self.tool_choice)}

    def omits_thinking(self) -> bool:
        return self.thinking is not None and self.thinking.display == "omitted"


class MessagesRequest(EngineFields, PromptFields):
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
                {
                    "max_tokens": 64,
                    "messages": [{"role": "user", "content": "What is 1234 * 56?"}],
                    "tools": [
                        {
                            "name": "calculator",
                            "description": "evaluates an expression",
                            "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}},
                        }
                    ],
                    "tool_choice": {"type": "auto"},
                },
            ]
        }
    )

    own_members: ClassVar[frozenset[str]] = _MEMBERS

    max_tokens: Integer = Field(json_schema_extra={"minimum": 1}, description="tokens of the answer at most")
    stop_sequences: StopList | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    output_format: AnthropicFormat | None = Field(None, description="output_config.format, as older clients send it")

    def own_way(self) -> Iterator[Way]:
        yield from way_of(self.output_format, "output_format")
        if self.output_config is not None:
            yield from way_of(self.output_config.format, "output_config.format")

    def sampling(self) -> dict[str, Any]:
        return {**super().sampling(), "max_tokens": self.max_tokens, "stop": self.stop_sequences}


class CountTokensRequest(PromptFields):
    """Body of POST /v1/messages/count_tokens."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"messages": [{"role": "user", "content": "What is 17 + 25?"}]}]})

    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_unsupported(cls, value: Any) -> Any:
        return checked(value, cls.model_fields.keys() | _MEMBERS, of_prompt=True) if isinstance(value, dict) else value
