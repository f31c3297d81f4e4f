"""Log-probabilities of tokens: of the model's own distribution, or of the one that they were drawn from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxserve.sampling.vocabulary import Vocabulary


def token_logprobs(
    logits: jax.Array, tokens: jax.Array, count: int, vocabulary: Vocabulary, wanted: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return log-probabilities, natural log, of the given tokens and of the likeliest ones.

    Args:
        logits: f32 [R, C], as the model made them, or the scores that were drawn from, -inf where a token could not come:
            this device's columns.
        tokens: int32 [R].
        count: how many of the likeliest tokens to return; static, 1 to V.
        vocabulary: which tokens the columns are.
        wanted: bool scalar, whether the likeliest are looked for, which is most of the work on CPUs; None for yes.

    Returns:
        chosen: f32 [R], of `tokens`.
        rank: int32 [R], 1 when no token is likelier than the given one.
        top_ids: int32 [R, count], likeliest first, ties by id.
        top_logprobs: f32 [R, count].
    """
    largest = vocabulary.largest(jnp.max(logits, axis=1, keepdims=True))
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)  # infinity less itself is NaN
    norm = largest + jnp.log(vocabulary.total(jnp.sum(jnp.exp(logits - largest), axis=1, keepdims=True)))
    column = vocabulary.columns(tokens, logits.shape[1])
    # On one device the logit itself, on the others zero.
    logit = vocabulary.total(logits.at[jnp.arange(logits.shape[0]), column].get(mode="fill", fill_value=0.0))
    rank = 1 + vocabulary.total(jnp.sum((logits > logit[:, None]).astype(jnp.int32), axis=1))
    if wanted is None:
        top, ids = vocabulary.top(logits, count)
    else:
        nothing = jnp.zeros((logits.shape[0], count), jnp.float32)
        top, ids = lax.cond(wanted, lambda: vocabulary.top(logits, count), lambda: (nothing, nothing.astype(jnp.int32)))
    return logit - norm[:, 0], rank, ids, top - norm
