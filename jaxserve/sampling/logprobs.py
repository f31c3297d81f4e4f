"""Log-probabilities of the model's own distribution, before any sampling parameter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def token_logprobs(logits: jax.Array, tokens: jax.Array, count: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return log-probabilities, natural log, of the given tokens and of the likeliest ones.

    Args:
        logits: f32 [R, V], as the model made them.
        tokens: int32 [R].
        count: how many of the likeliest tokens to return; static, at most V.

    Returns:
        chosen: f32 [R], of `tokens`.
        rank: int32 [R], 1 when no token is likelier than the given one.
        top_ids: int32 [R, count], likeliest first, ties by id.
        top_logprobs: f32 [R, count].
    """
    norm = jax.nn.logsumexp(logits, axis=1, keepdims=True)
    logit = jnp.take_along_axis(logits, tokens[:, None], axis=1)
    rank = 1 + jnp.sum((logits > logit).astype(jnp.int32), axis=1)
    top, ids = lax.top_k(logits, count)
    return (logit - norm)[:, 0], rank, ids.astype(jnp.int32), top - norm
