"""Fields that bodies of several endpoints share. Types are strict, but numbers may be texts; null is the
default everywhere. Unknown fields are ignored; known ones that cannot be honoured are not: see server.unsupported.

Ranges are SamplingParams's and the engine's to check; the document of the API only tells them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from jaxserve.engine.budgets import MAX_SALT_CHARS
from jaxserve.sampling.params import (
    LOGPROBS_MODES,
    MAX_FLOAT32,
    MAX_INT32,
    MAX_LOGPROBS,
    MAX_SEQUENCES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    NUMBERS,
    Numeric,
)
from jaxserve.types import ServiceClass
from server.http.numbers import Integer, Number, integers
from server.http.structured import ResponseFormat, StructuredFields, way_of
from server.http.unions import described
from server.structured import Way
from server.unsupported.check import checked
from server.unsupported.table import Unsupported

_LONGEST_ID = 256
_LONGEST_NUMBER = 20  # digits; Python refuses to read some thousands of them


_BOTH_ENDS = {"add_generation_prompt": {"const": True}, "continue_final_message": {"const": True}}

# A conversation is answered or gone on with.
ONE_END: Mapping[str, Any] = MappingProxyType({"not": {"properties": _BOTH_ENDS, "required": [*_BOTH_ENDS]}})


def told(description: str | None = None, **schema: Any) -> Any:
    """An optional field; what `schema` says of it, in JSON Schema's words, is checked later than its type."""
    return Field(None, description=description, json_schema_extra=schema)


TokenId = Annotated[int, Field(json_schema_extra={"minimum": 0, "maximum": MAX_INT32})]
TokenList = Annotated[list[TokenId], Field(fail_fast=True), BeforeValidator(integers)]
_StopText = Annotated[str, Field(json_schema_extra={"minLength": 1})]
StopList = Annotated[list[_StopText], Field(fail_fast=True, json_schema_extra={"maxItems": MAX_STOP_STRINGS})]
Stop = Annotated[
    _StopText | StopList,
    described("a string or a list of strings"),
]
LogitBias = Annotated[
    dict[str, float],
    Field(json_schema_extra={"propertyNames": {"pattern": "^[0-9]+$"}, "additionalProperties": {"type": "number"}}),
]
ServiceTier = Annotated[
    Literal["auto", "default", "flex", "priority"],
    described("one of auto, default, flex and priority"),
]

# OpenAI's tiers that stand for a class; the others leave the choice to the server.
TIERS: Mapping[str, ServiceClass] = MappingProxyType(
    {"flex": ServiceClass.BATCH, "priority": ServiceClass.INTERACTIVE_PAID},
)


class StreamOptions(BaseModel):
    """What a stream tells besides the text."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = Field(None, description="end with a chunk that has usage and no choices")
    continuous_usage_stats: bool | None = Field(None, description="usage so far in every chunk; needs include_usage")
    resume: bool | None = Field(None, description="go on for a while without the client, which may read on: X-Stream-Id")


def _numeric(declared: Numeric) -> Any:
    """The type of a number's field, and the field."""
    high = MAX_FLOAT32 if declared.high is None else declared.high
    limits = {"exclusiveMinimum" if declared.above else "minimum": declared.low, "maximum": high}
    whole = {name: int(limit) if float(limit).is_integer() else limit for name, limit in limits.items()}
    kind: Any = Integer if declared.integer else Number
    return kind | None, told(declared.text, **whole)


if TYPE_CHECKING:  # its fields are only known when it runs
    _Numbers = BaseModel
else:
    _Numbers = create_model("_Numbers", **{name: _numeric(declared) for name, declared in NUMBERS.items()})


class SamplingFields(StructuredFields, _Numbers):
    """How to choose tokens: fields that every endpoint that generates knows by one name."""

    model_config = ConfigDict(strict=True)
    own_unsupported: ClassVar[Mapping[str, Unsupported]] = MappingProxyType({})
    own_members: ClassVar[frozenset[str]] = frozenset()  # of objects, by their path, that only some endpoints know

    min_tokens: Integer | None = told("no end of sequence before so many tokens", minimum=0)
    seed: Integer | None = told(minimum=-(2**63), exclusiveMaximum=2**64)
    logit_bias: LogitBias | None = Field(None, description="token id, as a string, to what is added to its logit")
    allowed_token_ids: TokenList | None = told("only these tokens may come", minItems=1)
    logprobs_mode: str | None = told(
        "which log-probabilities: the model's own, or those that tokens were drawn by", enum=[*LOGPROBS_MODES, None]
    )
    stop_token_ids: TokenList | None = told(maxItems=MAX_STOP_TOKEN_IDS)
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_unsupported(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return checked(value, cls.model_fields.keys() | cls.own_members, own=cls.own_unsupported)

    def sampling(self) -> dict[str, Any]:
        """The fields that SamplingParams knows under the same name."""
        fields = {name: getattr(self, name) for name in _SAMPLING}
        if self.logit_bias is not None:
            fields["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        return fields


class RequestFields(BaseModel):
    """What is asked, and what the request may take: fields that every endpoint that generates knows by one name."""

    model_config = ConfigDict(strict=True)

    model: str | None = Field(None, description="the served model's name; the only one by default")
    stream: bool | None = Field(None, description="answer with server-sent events as the text comes")
    service_class: Literal["interactive_paid", "interactive_free", "batch"] | None = None
    cache_salt: str | None = told(
        "only requests of the tenant with the same salt share cached prefixes", minLength=1, maxLength=MAX_SALT_CHARS
    )
    lora_adapter: str | None = told("the adapter that computes it, where `model` names the model that it is over", minLength=1)
    queue_timeout: Number | None = told("seconds to wait for the first step at most", exclusiveMinimum=0)
    timeout: Number | None = told("seconds to take in all at most", exclusiveMinimum=0)
    max_total_tokens: Integer | None = told("tokens of a prompt and of its n outputs together at most", minimum=2)
    request_id: str | None = Field(
        None, min_length=1, max_length=_LONGEST_ID, description="the end of the reply's id; must not be in use"
    )

    def options(self) -> dict[str, Any]:
        """The fields that RequestOptions knows under the same name."""
        return {**{name: getattr(self, name) for name in _OPTIONS}, "adapter": self.lora_adapter}


class EngineFields(SamplingFields, RequestFields):
    """Both, side by side, and OpenAI's tiers."""

    service_tier: str | None = None  # endpoints know different ones

    def options(self) -> dict[str, Any]:
        """The fields that RequestOptions knows under the same name; a tier stands for its class where none is named."""
        return {**super().options(), "service_class": self.service_class or TIERS.get(self.service_tier or "")}

    def tier(self) -> dict[str, str]:
        """What an answer says of the tier: the one that was used, if the request names one."""
        if self.service_tier is None:
            return {}
        return {"service_tier": self.service_tier if self.service_tier in TIERS else "default"}


class SharedFields(EngineFields):
    """Fields that chat and text completions share."""

    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="a tag of the client's own, without effect")
    response_format: ResponseFormat | None = Field(None, description="what form the output must have")
    n: Integer | None = told("outputs for a prompt", minimum=1, maximum=MAX_SEQUENCES)
    max_tokens: Integer | None = told("tokens of an output at most; 0 only with prompt_logprobs", minimum=0)
    stop: Stop | None = None
    prompt_logprobs: Integer | None = told(
        "log-probabilities of the prompt, and of so many alternatives at each position", minimum=0, maximum=MAX_LOGPROBS
    )
    prompt_logprobs_start: Integer | None = told(
        "those of prompt tokens from this one on; what comes before may be in the prefix cache", minimum=0
    )
    service_tier: ServiceTier | None = Field(None, description="flex is the class batch, priority is interactive_paid")
    truncate_prompt_tokens: Integer | None = told(
        "keep only so many tokens at the end of the prompt; -1 keeps what the context has room for", minimum=-1
    )
    return_token_ids: bool | None = Field(None, description="the answer tells the token ids of prompt and output")
    return_tokens_as_token_ids: bool | None = Field(None, description='log-probabilities name tokens as "token_id:7"')

    def own_way(self) -> Iterator[Way]:
        return way_of(self.response_format, "response_format")

    def sampling(self) -> dict[str, Any]:
        return super().sampling() | {name: getattr(self, name) for name in _SHARED_SAMPLING}


_SHARED_SAMPLING = ("n", "max_tokens", "stop", "prompt_logprobs", "prompt_logprobs_start")
_OPTIONS = ("service_class", "cache_salt", "queue_timeout", "timeout", "max_total_tokens")
_SAMPLING = tuple(name for name in SamplingFields.model_fields if name not in ("logit_bias", *StructuredFields.model_fields))


def _token_id(key: str) -> Any:
    """The id that a JSON object's key stands for; SamplingParams refuses what is not one."""
    is_number = key.isascii() and key.isdigit() and len(key) <= _LONGEST_NUMBER
    return int(key) if is_number else key
