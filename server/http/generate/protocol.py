"""Bodies of POST /inference/v1/generate and /inference/v1/abort_requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from jaxserve.sampling.params import MAX_LOGPROBS, MAX_SEQUENCES
from server.http.fields import RequestFields, SamplingFields, Stop, StreamOptions, TokenList, told
from server.http.numbers import Integer
from server.unsupported.check import checked
from server.unsupported.table import OF_GENERATE, OF_SAMPLING_PARAMS, Unsupported

OutputMode = Literal["tokens", "text"]
MAX_ABORTED = 1024  # of one call: each is looked for in every engine


class GenerateSamplingParams(SamplingFields):
    """vLLM's SamplingParams. What is left out has the values there, whatever the checkpoint recommends."""

    own_unsupported: ClassVar[Mapping[str, Unsupported]] = OF_SAMPLING_PARAMS

    n: Integer | None = told("outputs for the prompt", minimum=1, maximum=MAX_SEQUENCES)
    max_tokens: Integer | None = told("tokens of an output at most; 0 only with prompt_logprobs", minimum=0)
    stop: Stop | None = None
    logprobs: Integer | None = told(
        "log-probabilities of each token, and of so many of the likeliest", minimum=0, maximum=MAX_LOGPROBS
    )
    prompt_logprobs: Integer | None = told(
        "log-probabilities of the prompt, and of so many alternatives at each position", minimum=0, maximum=MAX_LOGPROBS
    )
    prompt_logprobs_start: Integer | None = told(
        "those of prompt tokens from this one on; what comes before may be in the prefix cache", minimum=0
    )
    detokenize: bool | None = Field(None, description="false only where output_mode is tokens, which has no text either way")

    def sampling(self) -> dict[str, Any]:
        return super().sampling() | {name: getattr(self, name) for name in _OWN_SAMPLING}


class GenerateRequest(RequestFields):
    """Body of POST /inference/v1/generate."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"token_ids": [49, 55, 43], "sampling_params": {"temperature": 0, "max_tokens": 8}},
                {
                    "token_ids": [49, 55, 43],
                    "sampling_params": {"n": 2, "seed": 7, "max_tokens": 8, "logprobs": 1},
                    "output_mode": "text",
                    "stream": True,
                },
            ]
        }
    )

    token_ids: Annotated[TokenList, Field(json_schema_extra={"minItems": 1})] = Field(description="the prompt")
    sampling_params: GenerateSamplingParams = Field(description="how to choose tokens")
    output_mode: OutputMode | None = Field(None, description="text tells the text of the output beside its tokens")
    return_token_ids: bool | None = Field(None, description="the answer tells the prompt's token ids, too")
    stream_options: StreamOptions | None = None

    @property
    def mode(self) -> OutputMode:
        return self.output_mode or "tokens"

    @model_validator(mode="before")
    @classmethod
    def _without_unsupported(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name in _MISPLACED:
            if value.get(name) is not None:
                raise PydanticCustomError("misplaced", "must be in sampling_params", {"param": name})
        return checked(value, cls.model_fields.keys(), own=OF_GENERATE)

    @model_validator(mode="after")
    def _has_text(self) -> GenerateRequest:
        if self.mode == "text" and self.sampling_params.detokenize is False:
            raise PydanticCustomError("no_text", "must not be text where detokenize is false", {"param": "output_mode"})
        return self


_OWN_SAMPLING = tuple(GenerateSamplingParams.model_fields.keys() - SamplingFields.model_fields.keys() - {"detokenize"})
_MISPLACED = tuple(GenerateSamplingParams.model_fields.keys() - {"detokenize"})


class AbortRequest(BaseModel):
    """Body of POST /inference/v1/abort_requests."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"request_ids": ["generate-tokens-7d4e"]}]})

    request_ids: list[str] = Field(
        max_length=MAX_ABORTED, description="what replies call them: request_id, or the id of other endpoints"
    )
