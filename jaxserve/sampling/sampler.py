"""sample: choose the next token of every row. Pure jax, part of the jitted step.

A row's token depends on its own logits, parameters and `fold_in(key, position)` alone: neighbours, batching and bucket
do not matter. Work that no row needs is skipped at run time. Each device works on its own part of the vocabulary; what they
exchange is a few numbers a row: one exchange for greedy rows, one more with the largest logit for random ones, and one a
probe where rows truncate.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxserve.sampling.batch import SamplingBatch
from jaxserve.sampling.noise import gumbel_noise
from jaxserve.sampling.options import (
    BIAS,
    FREQUENCY,
    HAS_BIAS,
    KEY,
    PENALTIES,
    PRESENCE,
    RANDOM,
    REPETITION,
    SUPPRESS,
    SUPPRESSION,
    TEMPERATURE,
    TRUNCATION,
)
from jaxserve.sampling.state import SamplerState
from jaxserve.sampling.truncation import Rule, kept_tokens
from jaxserve.sampling.vocabulary import LAST_INT32, Vocabulary

LARGEST = float(np.finfo(np.float32).max)
NO_TOKEN = -1  # of a row without valid logits


def sample(
    logits: jax.Array, batch: SamplingBatch, state: SamplerState, vocabulary: Vocabulary, rules: tuple[Rule, ...] = ()
) -> jax.Array:
    """Choose one token a row.

    Order: penalties, bias, suppressed tokens, temperature, top-k, top-p, the rules that `kept_tokens` has after them, then
    Gumbel-max. Greedy rows take the largest logit before temperature, of several the lowest id. `record_tokens` enters the
    result into the state.

    A row has no valid logits if one of them, of tokens not suppressed, is NaN or +inf. Its neighbours do not notice.

    Args:
        logits: f32 [R, C], this device's columns.
        batch: what each row asks for.
        state: what each sequence has seen so far, of the same columns.
        vocabulary: which tokens the columns are.
        rules: of which tokens are kept, besides those that there are.

    Returns:
        int32 [R], NO_TOKEN for rows without valid logits; 0 for a row whose tokens are all forbidden.
    """
    plain = ~(batch.any(RANDOM) | batch.any(PENALTIES) | batch.any(BIAS) | batch.any(SUPPRESSION))
    # One cond around everything: each cond that returns logits costs a copy of them even where it changes nothing.
    tokens: jax.Array = lax.cond(
        plain, lambda: _likeliest(logits, vocabulary), lambda: _general(logits, batch, state, vocabulary, rules)
    )
    return tokens


def _general(
    logits: jax.Array, batch: SamplingBatch, state: SamplerState, vocabulary: Vocabulary, rules: tuple[Rule, ...]
) -> jax.Array:
    logits = _adjusted(logits, batch, state, vocabulary)
    scores: jax.Array = lax.cond(batch.any(RANDOM), lambda: _noisy(logits, batch, vocabulary, rules), lambda: logits)
    return _likeliest(scores, vocabulary)


def _adjusted(logits: jax.Array, batch: SamplingBatch, state: SamplerState, vocabulary: Vocabulary) -> jax.Array:
    penalized: jax.Array = lax.cond(batch.any(PENALTIES), lambda: _penalized(logits, batch, state), lambda: logits)
    biased: jax.Array = lax.cond(
        batch.any(BIAS),
        lambda: penalized + jnp.where((batch[HAS_BIAS] != 0)[:, None], state.bias[batch.slot], 0.0),
        lambda: penalized,
    )
    allowed: jax.Array = lax.cond(
        batch.any(SUPPRESSION), lambda: _suppressed(biased, batch[SUPPRESS], vocabulary), lambda: biased
    )
    return allowed


def _penalized(logits: jax.Array, batch: SamplingBatch, state: SamplerState) -> jax.Array:
    counts = state.output_counts[batch.slot]
    generated = counts > 0
    factor = batch[REPETITION][:, None]
    repeated = jnp.where(logits > 0.0, logits / factor, logits * factor)
    adjusted = jnp.where(generated | state.in_prompt[batch.slot], repeated, logits)
    adjusted -= batch[FREQUENCY][:, None] * counts.astype(jnp.float32)
    adjusted -= batch[PRESENCE][:, None] * generated.astype(jnp.float32)
    # A factor may have overflowed; what was infinite before stays so, whatever penalties its neighbours have.
    return jnp.where(jnp.isinf(logits), logits, jnp.clip(adjusted, -LARGEST, LARGEST))


def _suppressed(logits: jax.Array, suppress: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    rows, columns = logits.shape
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    return logits.at[row, vocabulary.columns(suppress, columns)].set(-jnp.inf, mode="drop")


def _noisy(logits: jax.Array, batch: SamplingBatch, vocabulary: Vocabulary, rules: tuple[Rule, ...]) -> jax.Array:
    """Scores whose largest is a sample; of greedy rows the logits themselves. NaN and +inf stay what makes a row invalid."""
    largest = vocabulary.largest(jnp.max(logits, axis=1))[:, None]
    # A row may forbid every token: then all deficits are infinite rather than NaN.
    largest = jnp.maximum(largest, -LARGEST)
    temperature = batch[TEMPERATURE][:, None]
    is_greedy = temperature <= 0.0
    deficit = (largest - logits) / jnp.where(is_greedy, 1.0, temperature)
    scores: jax.Array = lax.cond(
        batch.any(TRUNCATION),
        lambda: jnp.where(kept_tokens(deficit, batch, vocabulary, rules) | jnp.isnan(deficit), -deficit, -jnp.inf),
        lambda: -deficit,
    )
    noise = gumbel_noise(batch[KEY], batch.position, logits.shape[1], vocabulary)
    # The barrier keeps the noise from being drawn once more for each pass over the scores.
    noisy: jax.Array = lax.optimization_barrier(jnp.where(is_greedy, logits, scores + noise))
    return noisy


def _likeliest(scores: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """Return the lowest id of each row's largest score, NO_TOKEN where a score is NaN or +inf.

    Two plain reductions: XLA makes them faster than one argmax.
    """
    token = vocabulary.tokens(scores.shape)
    largest = jnp.max(scores, axis=1, keepdims=True)
    # XLA's vectorised maximum on CPUs loses NaN, so the second reduction looks for it.
    candidate = jnp.where(scores == largest, token, LAST_INT32)
    first = jnp.min(jnp.where(jnp.isnan(scores), NO_TOKEN, candidate), axis=1)
    score, chosen = vocabulary.best(largest[:, 0], first)
    return jnp.where(score < jnp.inf, chosen, NO_TOKEN)
