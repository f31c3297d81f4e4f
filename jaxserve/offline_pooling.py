"""What the offline API makes of prompts that are pooled: requests before, outputs in vLLM's shapes behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxserve.engine.build import BuiltEngine
from jaxserve.engine.pooled import PooledOutputs
from jaxserve.errors import InvalidRequestError
from jaxserve.offline import PooledRequest
from jaxserve.outputs import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from jaxserve.pooling.params import PoolingParams
from jaxserve.pooling.truncation import truncated
from jaxserve.types import Prompt, RequestOptions

WHOLE_CONTEXT = -1


def prepare_pooled(
    built: BuiltEngine, prompts: Sequence[Prompt], params: Sequence[PoolingParams], options: Sequence[RequestOptions]
) -> list[PooledRequest]:
    """The requests of a call. Raises as Intake.prepare_pooled."""
    now, requests = built.clock.now(), []
    for index, (prompt, wanted, option) in enumerate(zip(prompts, params, options, strict=True)):
        request, pooler = built.intake.prepare_pooled(prompt, wanted, str(index), now, option)
        requests.append(PooledRequest([request], PooledOutputs(str(index), request, pooler, wanted, built.clock)))
    return requests


class EmbeddedTexts:
    """Texts as a model embeds them: behind its prompt of a kind, and cut. Raises InvalidRequestError."""

    def __init__(self, built: BuiltEngine, prompt_name: str | None, limit: int | None) -> None:
        context = built.report.model.max_model_len
        if limit is not None and limit != WHOLE_CONTEXT and not 1 <= limit <= context:
            raise InvalidRequestError(
                f"truncate_prompt_tokens must be -1 or between 1 and {context}, got {limit}", param="truncate_prompt_tokens"
            )
        self._tokenizer, self._pooler, self._name = built.tokenizer, built.report.model.pooler, prompt_name
        self._limit = context if limit == WHOLE_CONTEXT else limit

    def prompt(self, given: Prompt) -> Prompt:
        fields: Mapping[str, Any] = given if isinstance(given, Mapping) else {"prompt": given}
        text = fields.get("prompt")
        if not isinstance(text, str) or not text:
            ids = fields.get("prompt_token_ids")
            return given if self._limit is None or ids is None else {"prompt_token_ids": list(ids)[: self._limit]}
        if self._pooler is not None:
            text = self._pooler.prompted(text, self._name)
        if self._limit is None or self._tokenizer is None:
            return text
        plain = self._tokenizer.encode(text, add_special_tokens=False)
        return {"prompt_token_ids": truncated(self._tokenizer.encode(text), plain, self._limit)}


def embedding(output: PoolingOutput) -> EmbeddingOutput:
    return EmbeddingOutput(output.data.tolist())


def classification(output: PoolingOutput) -> ClassificationOutput:
    return ClassificationOutput(output.data.tolist())


def relevance(output: PoolingOutput) -> ScoringOutput:
    return ScoringOutput(float(output.data[0]))


def pairs_of(data_1: str | Sequence[str], data_2: str | Sequence[str]) -> list[tuple[str, str]]:
    """One with each, or each with that at its place. Raises InvalidRequestError."""
    first, second = ([data] if isinstance(data, str) else list(data) for data in (data_1, data_2))
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second) or not first:
        raise InvalidRequestError(f"data_1 has {len(first)} texts, and data_2 {len(second)}: one, or as many", param="data_1")
    return list(zip(first, second, strict=True))


def similarity(
    request_id: str, first: PoolingRequestOutput[PoolingOutput], second: PoolingRequestOutput[PoolingOutput]
) -> ScoringRequestOutput:
    """The cosine of two embeddings of length 1."""
    score = None
    if first.outputs is not None and second.outputs is not None:
        score = ScoringOutput(float(np.dot(first.outputs.data, second.outputs.data)))
    return PoolingRequestOutput(
        request_id,
        score,
        [*first.prompt_token_ids, *second.prompt_token_ids],
        first.num_cached_tokens + second.num_cached_tokens,
        first.error or second.error,
    )
