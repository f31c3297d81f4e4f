"""sample: choose the next token of every row. Pure jax, part of the jitted step.

A row's token depends on its own logits, parameters and `fold_in(key, position)` alone: neighbours, batching and bucket
do not matter, nor which of the variants that do what it needs computes it. Each device works on its own part of the vocabulary;
what they exchange is a few numbers a row: one exchange for greedy rows, one more with the largest logit for random ones, and one
a pass where rows truncate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from jaxserve.sampling.batch import SamplingBatch
from jaxserve.sampling.noise import gumbel_noise
from jaxserve.sampling.options import (
    BIAS,
    FREQUENCY,
    HAS_BIAS,
    KEY,
    MASKED,
    MASKING,
    PENALTIES,
    PRESENCE,
    PROCESSED,
    RANDOM,
    REPETITION,
    RULES,
    SUPPRESS,
    SUPPRESSION,
    TEMPERATURE,
    TRUNCATION,
)
from jaxserve.sampling.state import SamplerState
from jaxserve.sampling.truncation import Rule, kept_tokens
from jaxserve.sampling.variants import Variant
from jaxserve.sampling.vocabulary import LARGEST, LAST_INT32, Vocabulary

NO_TOKEN = -1  # of a row without valid logits


@dataclass(frozen=True, slots=True)
class Reading:
    """What is told of the scores that tokens are drawn from, where rows need it.

    Attributes:
        width: W.
        read: (scores f32 [R, C], before noise and -inf where a token could not come; tokens int32 [R]) -> int32 [R, W].
    """

    width: int
    read: Callable[[jax.Array, jax.Array], jax.Array]

    def nothing(self, rows: int) -> jax.Array:
        return jnp.zeros((rows, self.width), jnp.int32)


NOTHING = Reading(0, lambda scores, tokens: jnp.zeros((tokens.shape[0], 0), jnp.int32))


def sample(
    logits: jax.Array,
    batch: SamplingBatch,
    state: SamplerState,
    vocabulary: Vocabulary,
    variant: Variant,
    rules: tuple[Rule, ...] = (),
    masks: jax.Array | None = None,
) -> jax.Array:
    """Choose one token a row: the tokens of `sample_and_read`, which reads nothing."""
    return sample_and_read(logits, batch, state, vocabulary, variant, NOTHING, rules, masks)[0]


def sample_and_read(
    logits: jax.Array,
    batch: SamplingBatch,
    state: SamplerState,
    vocabulary: Vocabulary,
    variant: Variant,
    reading: Reading,
    rules: tuple[Rule, ...] = (),
    masks: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Choose one token a row.

    Order: penalties, bias, suppressed tokens, masks, temperature, top-k, top-p, the rules that `kept_tokens` has after them, then
    Gumbel-max. Greedy rows take the largest logit before temperature, of several the lowest id. `record_tokens` enters the
    result into the state.

    A row has no valid logits if one of them, of tokens not suppressed, is NaN or +inf. Its neighbours do not notice.

    Args:
        logits: f32 [R, C], this device's columns.
        batch: what each row asks for.
        state: what each sequence has seen so far, of the same columns.
        vocabulary: which tokens the columns are.
        variant: it does what the rows need.
        reading: of the scores that were drawn from, for rows that need PROCESSED; of greedy rows they are the logits with
            penalties, bias and masks, as vLLM has them.
        rules: of which tokens are kept, besides those that there are.
        masks: int32 [R, W], for rows that are masked: see `Vocabulary.mask_of`. None if there are none.

    Returns:
        int32 [R], NO_TOKEN for rows without valid logits; 0 for a row whose tokens are all forbidden. And what was read,
        int32 [R, W]; zeros if no row needs it.
    """
    # One choice around everything: each cond that returns logits costs a copy of them even where it changes nothing.
    return variant.when(
        (RANDOM, PENALTIES, BIAS, SUPPRESSION, MASKING, PROCESSED),
        batch,
        lambda: _general(logits, batch, state, vocabulary, variant, reading, rules, masks),
        lambda: (_likeliest(logits, vocabulary), reading.nothing(logits.shape[0])),
    )


def _general(
    logits: jax.Array,
    batch: SamplingBatch,
    state: SamplerState,
    vocabulary: Vocabulary,
    variant: Variant,
    reading: Reading,
    rules: tuple[Rule, ...],
    masks: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    adjusted = _adjusted(logits, batch, state, vocabulary, variant)
    allowed = adjusted
    if masks is not None:
        allowed = variant.when((MASKING,), batch, lambda: _masked(adjusted, batch, masks, vocabulary), lambda: adjusted)
    return variant.when(
        (RANDOM, PROCESSED),
        batch,
        lambda: _drawn(allowed, batch, vocabulary, variant, reading, rules),
        lambda: (_likeliest(allowed, vocabulary), reading.nothing(logits.shape[0])),
    )


def _adjusted(
    logits: jax.Array, batch: SamplingBatch, state: SamplerState, vocabulary: Vocabulary, variant: Variant
) -> jax.Array:
    penalized = variant.when((PENALTIES,), batch, lambda: _penalized(logits, batch, state, vocabulary), lambda: logits)
    biased = variant.when(
        (BIAS,),
        batch,
        lambda: penalized + jnp.where((batch[HAS_BIAS] != 0)[:, None], state.bias[batch.slot], 0.0),
        lambda: penalized,
    )
    return variant.when((SUPPRESSION,), batch, lambda: _suppressed(biased, batch[SUPPRESS], vocabulary), lambda: biased)


def _penalized(logits: jax.Array, batch: SamplingBatch, state: SamplerState, vocabulary: Vocabulary) -> jax.Array:
    counts = state.output_counts[batch.slot]
    if batch.drafts is not None:
        column = vocabulary.tokens(logits.shape)
        for place in range(batch.drafts.shape[1]):
            counts += (column == batch.drafts[:, place, None]).astype(jnp.int32)
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


def _masked(logits: jax.Array, batch: SamplingBatch, masks: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    allowed = vocabulary.mask_of(masks, logits.shape[1])
    return jnp.where(allowed | (batch[MASKED] == 0)[:, None], logits, -jnp.inf)


def _drawn(
    logits: jax.Array,
    batch: SamplingBatch,
    vocabulary: Vocabulary,
    variant: Variant,
    reading: Reading,
    rules: tuple[Rule, ...],
) -> tuple[jax.Array, jax.Array]:
    """The largest of scores with noise is a sample; of greedy rows they are the logits themselves.

    NaN and +inf stay what makes a row invalid.
    """
    largest = vocabulary.largest(jnp.max(logits, axis=1))[:, None]
    # A row may forbid every token: then all deficits are infinite rather than NaN.
    largest = jnp.maximum(largest, -LARGEST)
    temperature = batch[TEMPERATURE][:, None]
    is_greedy = temperature <= 0.0
    deficit = (largest - logits) / jnp.where(is_greedy, 1.0, temperature)
    scores = variant.when(
        (TRUNCATION, RULES),
        batch,
        lambda: jnp.where(kept_tokens(deficit, batch, vocabulary, variant, rules) | jnp.isnan(deficit), -deficit, -jnp.inf),
        lambda: -deficit,
    )
    if PROCESSED in variant.needs and not variant.asks:
        scores = lax.optimization_barrier(scores)  # what is read is what was drawn from, not a second computation of it
    noise = gumbel_noise(batch[KEY], batch.position, logits.shape[1], vocabulary)
    # The barrier keeps the noise from being drawn once more for each pass over the scores.
    noisy = lax.optimization_barrier(jnp.where(is_greedy, logits, scores + noise))
    tokens = _likeliest(noisy, vocabulary)
    read = variant.when(
        (PROCESSED,),
        batch,
        lambda: reading.read(jnp.where(is_greedy, logits, scores), jnp.maximum(tokens, 0)),
        lambda: reading.nothing(logits.shape[0]),
    )
    return tokens, read


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
