"""What the offline API returns: vLLM's names and shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy.typing as npt

from jaxserve.engine.events import PositionLogprobs, TokenLogprob, WeightRange
from jaxserve.errors import JaxserveError


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of a token, its rank (1 is likeliest) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One generated sequence.

    Attributes:
        index: which of the request's `n`.
        text: the text, stop string left out unless asked for.
        token_ids: all generated tokens, a stop token included.
        cumulative_logprob: sum of the chosen tokens' log-probabilities, when `logprobs` was asked for.
        logprobs: one dict a token, token id -> Logprob, the chosen token among them; of the tokens that were generated now.
        finish_reason: "stop" or "length"; "abort" if an update of the weights cut it off;
            "error" if the request failed before this sequence was done.
        stop_reason: the stop string or stop token id that matched.
        seed: of its samples. A request of one sequence with this seed and `output_token_ids` goes on with this one.
        num_given_tokens: how many of `token_ids` were the prompt's `output_token_ids`.
        weight_versions: which of its tokens are of which weights; None if the engine's were never updated nor named.
        routed_experts: uint[prompt and output tokens but the last, layers that have experts, experts a token], which ones each
            token visited, the best first. None without `enable_return_routed_experts`, and for one that never ran.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str
    stop_reason: str | int | None
    seed: int = 0
    num_given_tokens: int = 0
    weight_versions: list[WeightRange] | None = None
    routed_experts: npt.NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request.

    Attributes:
        request_id: its number in the call, as a string.
        prompt: the prompt's text, None when it was given as token ids.
        prompt_token_ids: the prompt as the model saw it.
        prompt_logprobs: one dict a prompt token, None for the first; None unless asked for.
        outputs: the `n` sequences.
        num_cached_tokens: prompt tokens found in the prefix cache.
        error: what the request failed with: DeadlineError for a timeout of its options, RefusedError if the engine would not
            take it, InternalError for a failure of this request alone. `outputs` then hold what there was.
        finished: always True.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    error: JaxserveError | None = None
    finished: bool = True


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    """What was pooled of a prompt: float32[dimensions], [T,dimensions] of its tokens, or [classes]."""

    data: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A prompt's embedding."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class ClassificationOutput:
    """The probability of each class; of a reward model its outputs as they are."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """How relevant one text is to another: a probability, or the cosine of two embeddings."""

    score: float


@dataclass(frozen=True, slots=True)
class LikelihoodOutput:
    """How likely a continuation is behind its context.

    Attributes:
        request_id: its number in the call, as a string.
        logprob: natural logarithm of the continuation's probability: the sum of `token_logprobs`.
        is_greedy: whether each of its tokens was the likeliest.
        token_ids: of the continuation.
        token_logprobs: of these.
        num_prompt_tokens: of context and continuation.
        num_cached_tokens: of these, those that were computed for others before.
        error: what it failed with, as in RequestOutput; `token_logprobs` is empty then.
    """

    request_id: str
    logprob: float
    is_greedy: bool
    token_ids: list[int]
    token_logprobs: list[float]
    num_prompt_tokens: int
    num_cached_tokens: int
    error: JaxserveError | None = None


Made = TypeVar("Made")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput(Generic[Made]):
    """A request that was pooled.

    Attributes:
        request_id: its number in the call, as a string.
        outputs: what was made of the prompt; None if the request failed.
        prompt_token_ids: the prompt as the model saw it.
        num_cached_tokens: of these found in the prefix cache.
        error: what it failed with, as in RequestOutput.
        finished: always True.
    """

    request_id: str
    outputs: Made | None
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    error: JaxserveError | None = None
    finished: bool = True

    def made(self, make: Callable[[Made], Other]) -> PoolingRequestOutput[Other]:
        """The same with what is made of the outputs, if there are any."""
        outputs = None if self.outputs is None else make(self.outputs)
        return PoolingRequestOutput(
            self.request_id, outputs, self.prompt_token_ids, self.num_cached_tokens, self.error, self.finished
        )


EmbeddingRequestOutput = PoolingRequestOutput[EmbeddingOutput]
ClassificationRequestOutput = PoolingRequestOutput[ClassificationOutput]
ScoringRequestOutput = PoolingRequestOutput[ScoringOutput]


def logprob_dict(position: PositionLogprobs) -> dict[int, Logprob]:
    """The alternatives of one position, and the chosen token."""
    return {entry.token_id: _logprob(entry) for entry in (*position.top, position.chosen)}


def _logprob(entry: TokenLogprob) -> Logprob:
    return Logprob(entry.logprob, entry.rank, entry.text)
