"""What a request's client sees: Started, then Deltas in order, then one Finished per sequence.

The same events feed the offline API, HTTP and gRPC. Nothing sent is taken back: concatenated delta texts are the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxserve.types import FinishReason


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token at one position, natural log, of the distribution that `logprobs_mode` names.

    Attributes:
        token_id: the token.
        logprob: its log-probability.
        rank: 1 for the likeliest token.
        text: the token's own text, special tokens written out; incomplete UTF-8 shows as U+FFFD.
        raw: the token's bytes.
    """

    token_id: int
    logprob: float
    rank: int
    text: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The chosen token of one position and, likeliest first, the alternatives asked for (the chosen one may be among them)."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one sequence: in the prompt, in the output, and prompt tokens found in the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: waiting in the queue, to the first token since arrival, and in all."""

    queue: float
    first_token: float
    total: float


@dataclass(frozen=True, slots=True)
class Started:
    """The request has its first token (once a request, before any Delta).

    Attributes:
        prompt_token_ids: the prompt as the model sees it.
        cached_tokens: how many of them came from the prefix cache.
        queue_time: seconds in the queue.
        prompt_logprobs: one entry a prompt position, None for the first; None when not asked for.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    cached_tokens: int
    queue_time: float
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of sequence `index`.

    Attributes:
        text: text that is now certain; may be empty while bytes or a possible stop string are held back.
        token_ids: the new tokens, the first of which is the sequence's `first_token_index`-th.
        logprobs: one entry a token when asked for, else None.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    first_token_index: int
    logprobs: tuple[PositionLogprobs, ...] | None = None


@dataclass(frozen=True, slots=True)
class WeightRange:
    """Tokens start:end of an output, which are of one version of the weights; "default" if those had no name."""

    version: int | str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Sequence `index` ended.

    Attributes:
        finish_reason: why.
        matched: the stop string or stop token id that matched; None for EOS and other reasons.
        resumed: times that another engine went on with it, because the one that had it was lost.
        weight_versions: which of its tokens are of which weights, if the engine's were ever updated or named; else None.
        pooled: of a request with PoolingParams: its embedding float32[dimensions], every token's [T,dimensions], or what the
            model's head makes of it [classes].
    """

    request_id: str
    index: int
    finish_reason: FinishReason
    matched: str | int | None
    usage: Usage
    timing: Timing
    resumed: int = 0
    weight_versions: tuple[WeightRange, ...] | None = None
    pooled: npt.NDArray[np.float32] | None = None


Event = Started | Delta | Finished
