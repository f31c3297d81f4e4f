"""RolloutPolicy: what trainers' rollout interfaces have in common, over an engine that has the trainer's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxserve.errors import InvalidRequestError
from jaxserve.jax_settings import engine_settings
from jaxserve.llm import LLM
from jaxserve.rollout.sequences import Rollout, rollout, score
from jaxserve.sampling.params import SamplingParams
from jaxserve.step.plan import Floats, Ints

Seed = int | jax.Array | npt.NDArray[Any] | None


class TrainerTokenizer(Protocol):
    """The trainer's tokenizer, as Tunix's `TokenizerAdapter` is one."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def bos_id(self) -> int | None: ...

    def eos_id(self) -> int: ...

    def pad_id(self) -> int: ...


class RolloutPolicy:
    """Samples texts, scores tokens, and takes new weights.

    Args:
        llm: the engine.
        tokenizer: the trainer's: prompts and texts go through it, so that both see the same ids.
        adapter: the name of the one (LoRA) that is trained; empty where the weights are.
    """

    def __init__(self, llm: LLM, tokenizer: TrainerTokenizer, adapter: str = "") -> None:
        self.adapter = adapter
        self.llm = llm
        self.tokenizer = tokenizer

    def encode(self, prompt: str) -> list[int]:
        """A prompt's ids, begun with the tokenizer's beginning-of-sequence token if it has one, once."""
        ids, begin = list(self.tokenizer.encode(prompt)), self.tokenizer.bos_id()
        return ids if not begin or ids[:1] == [begin] else [begin, *ids]

    def sample(
        self, prompts: Sequence[str], params: SamplingParams, *, eos_tokens: Sequence[int] | None = None, seed: Seed = None
    ) -> list[Rollout]:
        """One sequence a prompt, whose tokens end with the one that ended it.

        Args:
            prompts: texts.
            params: how to sample; its seed and stop tokens are replaced.
            eos_tokens: what ends a sequence; the tokenizer's end-of-sequence token if None.
            seed: of all prompts, from which each has one of its own: a number or a key of jax. None takes the engine's.
        """
        stops = (self.tokenizer.eos_id(),) if eos_tokens is None else tuple(map(int, eos_tokens))
        seeds = seeds_of(seed, len(prompts))
        each = [replace(params, seed=own, stop_token_ids=stops, ignore_eos=True) for own in seeds]
        given = [self.encode(prompt) for prompt in prompts]
        return [found[0] for found in rollout(self.llm, given, each, adapter=self.adapter)]

    @engine_settings()
    def token_logprobs(self, prompt_tokens: npt.ArrayLike, completion_tokens: npt.ArrayLike) -> Floats:
        """float32[B,C] of left-padded prompts [B,P] and right-padded completions [B,C]; 0 at padding."""
        prompts, completions = np.asarray(prompt_tokens), np.asarray(completion_tokens)
        pad, eos = self.tokenizer.pad_id(), self.tokenizer.eos_id()
        pairs = [
            (_without_left(prompt, pad), _to_its_end(completion, pad, eos))
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        logprobs = np.zeros(completions.shape, np.float32)
        for row, scored in enumerate(score(self.llm, pairs, adapter=self.adapter)):
            logprobs[row, : len(scored)] = scored
        return logprobs

    def left_padded(self, rollouts: Sequence[Rollout], length: int) -> Ints:
        """int32[B,P], the prompts of rollouts; P is `length`, or the power of two that holds the longest."""
        longest = max(len(one.prompt_token_ids) for one in rollouts)
        width = length if longest <= length else 1 << (longest - 1).bit_length()
        padded = np.full((len(rollouts), width), self.tokenizer.pad_id(), np.int32)
        for row, one in enumerate(rollouts):
            padded[row, width - len(one.prompt_token_ids) :] = one.prompt_token_ids
        return padded


@engine_settings()
def seeds_of(seed: Seed, count: int) -> list[int | None]:
    """A seed a prompt, from one for all."""
    if seed is None:
        return [None] * count
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    words = [seed % 2**64] if isinstance(seed, int) else [int(word) % 2**32 for word in np.asarray(seed).reshape(-1)]
    return [int(own) for own in np.random.SeedSequence(words).generate_state(count, np.uint64)]


def truncation(top_p: float | None, top_k: int | None) -> Mapping[str, Any]:
    """top_p and top_k as SamplingParams has them; None keeps all."""
    return {"top_p": 1.0 if top_p is None else top_p, "top_k": 0 if top_k is None else top_k}


def _without_left(tokens: npt.NDArray[Any], pad: int) -> list[int]:
    real = np.flatnonzero(tokens != pad)
    if not len(real):
        raise InvalidRequestError("a prompt has no tokens but padding", param="prompt_tokens")
    return [int(token) for token in tokens[real[0] :]]


def _to_its_end(tokens: npt.NDArray[Any], pad: int, eos: int) -> list[int]:
    """Up to its end-of-sequence token, which may be what pads it, too; or without the padding behind it."""
    ends, real = np.flatnonzero(tokens == eos), np.flatnonzero(tokens != pad)
    end = ends[0] + 1 if len(ends) else (real[-1] + 1 if len(real) else 0)
    return [int(token) for token in tokens[:end]]
