"""require_agreement: a trainer's model and the engine compute the same, or the trainer is told where they begin to differ.

A tree of weights does not say everything that a model does with them: the base of its rotary embedding, an epsilon, a scale or a
window come from two configurations that nobody compares. Tokens are then sampled from another model than the one that is trained.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxserve.errors import ConfigError
from jaxserve.llm import LLM
from jaxserve.rollout.forward import layer_inputs
from jaxserve.rollout.sequences import score
from jaxserve.step.plan import Floats, Ints

logger = logging.getLogger(__name__)

LIMITS = {"float32": 0.01, "bfloat16": 0.2, "float16": 0.2}
"""Nats: the mean difference of log-probabilities that is taken for rounding, by the coarser dtype of the two."""
_LAYER_LIMITS = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05}  # of a layer's inputs, relative to their root mean square
_TOKENS = 48


@dataclass(frozen=True, slots=True)
class TrainerForward:
    """What a trainer's model makes of one sequence.

    Attributes:
        logits: float32[T, V].
        layer_inputs: float32[T, E] of each layer, what goes into it; None where the model does not tell.
        dtype: of its parameters.
    """

    logits: Floats
    layer_inputs: Sequence[Floats] | None
    dtype: str


def require_agreement(
    llm: LLM, forward: Callable[[Ints], TrainerForward], *, adapter: str = "", limit: float | None = None
) -> float:
    """Compare one forward pass of the trainer's model with the engine's over a few random tokens.

    Args:
        llm: the engine, with the trainer's weights.
        forward: the trainer's model, of int32[T] tokens.
        adapter: the name of the one (LoRA) that the trainer's model has.
        limit: nats, the largest mean difference that is accepted; `LIMITS` if None.

    Returns:
        The mean difference of the tokens' log-probabilities, nats.

    Raises ConfigError: it is larger than the limit, or not a number. The message has the largest difference and the layer where
    it begins.
    """
    model = llm.report.model
    count = min(_TOKENS, model.max_model_len)
    tokens = np.random.default_rng(count).integers(0, model.vocab_size, count).astype(np.int32)
    theirs = forward(tokens)
    if theirs.logits.shape[1] < model.vocab_size:
        raise ConfigError(
            f"the trainer's model has {theirs.logits.shape[1]} tokens, the engine's {model.vocab_size}", param="config"
        )
    ours = score(llm, [(tokens[:1].tolist(), tokens[1:].tolist())], adapter=adapter)[0]
    differences = np.abs(ours - _logprobs(theirs.logits, tokens))
    mean = float(differences.mean())
    dtype = max(model.dtype, theirs.dtype, key=lambda name: LIMITS.get(name, 0.0))
    accepted = LIMITS.get(dtype, max(LIMITS.values())) if limit is None else limit
    if not mean <= accepted:
        raise ConfigError(
            f"the trainer's model and the engine do not compute the same: log-probabilities of {count - 1} tokens differ by "
            f"{mean:.2g} on average and by {differences.max():.2g} at most, where {accepted:g} on average is accepted. "
            f"{_where(llm, theirs, tokens, dtype)} Compare the trainer's configuration of its model with config.json",
            param="config",
        )
    logger.info("the trainer's model and the engine compute the same: %.2g nats of difference on average", mean)
    return mean


def _logprobs(logits: Floats, tokens: Ints) -> Floats:
    """float32[T-1], of each token after the first, from logits[T, V]."""
    shifted = logits[:-1] - logits[:-1].max(axis=1, keepdims=True)
    chosen = shifted[np.arange(len(tokens) - 1), tokens[1:]]
    return np.asarray(chosen - np.log(np.exp(shifted).sum(axis=1)), np.float32)


def _where(llm: LLM, theirs: TrainerForward, tokens: Ints, dtype: str) -> str:
    if theirs.layer_inputs is None:
        return "The trainer's model does not tell what goes into its layers."
    ours = layer_inputs(*llm.decoder, tokens)
    if len(ours) != len(theirs.layer_inputs):
        return f"The trainer's model has {len(theirs.layer_inputs)} layers, the engine's {len(ours)}."
    limit = _LAYER_LIMITS.get(dtype, max(_LAYER_LIMITS.values()))
    for layer, (own, other) in enumerate(zip(ours, theirs.layer_inputs, strict=True)):
        difference = float(np.sqrt(np.square(own - other).mean() / np.square(own).mean()))
        if not difference <= limit:
            where = f"layer {layer - 1}" if layer else "the embedding"
            return f"It begins in {where}, whose result differs by {100 * difference:.2g} %."
    return f"It begins in layer {len(ours) - 1}, the last one, or behind it, in the norm or the head, or in an adapter."
