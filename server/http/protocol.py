"""Bodies that clients send. Types are strict and unknown fields ignored; ranges are SamplingParams's to check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from jaxserve.types import ServiceClass
from server.http import unsupported


def _described(what: str) -> WrapValidator:
    """One message for a union, where pydantic would list how each of its members failed."""

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise PydanticCustomError("wrong_type", "must be {what}", {"what": what}) from error

    return WrapValidator(validate)


TokenList = Annotated[list[int], Field(fail_fast=True)]
TextList = Annotated[list[str], Field(fail_fast=True)]
Stop = Annotated[str | TextList, _described("a string or a list of strings")]
PromptField = Annotated[
    str | TextList | TokenList | Annotated[list[TokenList], Field(fail_fast=True)],
    _described("a string, a list of strings, a list of token ids or a list of lists of token ids"),
]


class TextPart(BaseModel):
    """A piece of a message's text."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


Content = Annotated[
    str | list[TextPart], _described("a string or a list of {type: 'text', text: ...} parts; only text is supported")
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
        if isinstance(value, dict):
            unsupported.refuse(value, unsupported.MESSAGE)
        return value

    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    """What a stream tells besides the text."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


ServiceTier = Annotated[
    Literal["auto", "default", "flex", "priority"],
    _described("one of auto, default, flex and priority"),
]

# OpenAI's tiers that stand for a class; the others leave the choice to the server.
TIERS: Mapping[str, ServiceClass] = MappingProxyType(
    {"flex": ServiceClass.BATCH, "priority": ServiceClass.INTERACTIVE_PAID},
)


class SharedFields(BaseModel):
    """Fields that chat and text completions share. null is the default everywhere."""

    model_config = ConfigDict(strict=True)

    model: str | None = Field(None, description="the served model's name; the only one by default")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="a tag of the client's own, without effect")
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: TokenList | None = None
    stop: Stop | None = None
    stop_token_ids: TokenList | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    service_tier: ServiceTier | None = Field(None, description="flex is the class batch, priority is interactive_paid")
    service_class: Literal["interactive_paid", "interactive_free", "batch"] | None = None
    cache_salt: str | None = Field(None, description="only requests of the tenant with the same salt share cached prefixes")
    queue_timeout: float | None = Field(None, description="seconds to wait for the first step at most")
    timeout: float | None = Field(None, description="seconds to take in all at most")
    max_total_tokens: int | None = Field(None, description="tokens of a prompt and of its n outputs together at most")

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("needs_stream", "is only allowed with stream: true", {"param": "stream_options"})
        return self

    @model_validator(mode="after")
    def _one_class(self) -> Self:
        wanted = TIERS.get(self.service_tier or "")
        if None not in (wanted, self.service_class) and wanted != self.service_class:
            raise PydanticCustomError(
                "contradiction",
                "must be {wanted}, or left out, with service_tier {tier}",
                {"param": "service_class", "wanted": str(wanted), "tier": self.service_tier},
            )
        return self

    def sampling(self) -> dict[str, Any]:
        """The fields that SamplingParams knows under the same name."""
        fields = {name: getattr(self, name) for name in _SHARED}
        if self.logit_bias is not None:
            fields["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        return fields

    def options(self) -> dict[str, Any]:
        """The fields that RequestOptions knows under the same name; a tier stands for its class."""
        fields = {name: getattr(self, name) for name in _OPTIONS}
        return {**fields, "service_class": TIERS.get(self.service_tier or "", self.service_class)}

    def tier(self) -> dict[str, str]:
        """What an answer says of the tier: the one that was used, if the request names one."""
        if self.service_tier is None:
            return {}
        return {"service_tier": self.service_tier if self.service_tier in TIERS else "default"}


_OPTIONS = ("cache_salt", "queue_timeout", "timeout", "max_total_tokens")
_OTHER = ("model", "stream", "stream_options", "user", "logit_bias", "service_tier", "service_class", *_OPTIONS)
_SHARED = tuple(name for name in SharedFields.model_fields if name not in _OTHER)


class ChatRequest(SharedFields):
    """Body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        if isinstance(value, dict):
            unsupported.refuse(value, unsupported.CHAT)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("needs_logprobs", "is only allowed with logprobs: true", {"param": "top_logprobs"})
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise PydanticCustomError(
                "contradiction", "must equal max_completion_tokens where both are given", {"param": "max_tokens"}
            )
        return self


class CompletionRequest(SharedFields):
    """Body of POST /v1/completions."""

    prompt: PromptField
    echo: bool | None = None
    logprobs: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        if isinstance(value, dict):
            unsupported.refuse(value, unsupported.COMPLETIONS)
        return value


def _token_id(key: str) -> Any:
    """The id that a JSON object's key stands for; SamplingParams refuses what is not one."""
    return int(key) if key.isascii() and key.isdigit() else key
