"""The online softmax (Milakov and Gimelshein 2018) over blocks of keys, in plain XLA."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# The most negative float32: unlike -inf it can be subtracted from itself.
LOWEST = float(np.finfo(np.float32).min)


class Softmax(NamedTuple):
    """The state of an online softmax: largest score, sum of weights, weighted sum of values; all f32."""

    largest: jax.Array
    total: jax.Array
    values: jax.Array


def absorb(state: Softmax, scores: jax.Array, seen: jax.Array, v: jax.Array) -> Softmax:
    """Take a block of scores [..., g, s] and values [..., s, d] into the state; only `seen` keys count."""
    scores = jnp.where(seen, scores, LOWEST)
    largest = jnp.maximum(state.largest, jnp.max(scores, axis=-1))
    weights = jnp.exp(scores - largest[..., None])
    fade = jnp.exp(state.largest - largest)
    flat = weights.reshape(*v.shape[:-2], -1, v.shape[-2])
    added = jnp.einsum("...qs,...sd->...qd", flat, v, preferred_element_type=jnp.float32).reshape(state.values.shape)
    return Softmax(largest, state.total * fade + jnp.sum(weights, axis=-1), state.values * fade[..., None] + added)


def normalize(state: Softmax) -> jax.Array:
    """The weighted mean of the values: 0 where there were no keys, whose total and values are 0."""
    return state.values / jnp.maximum(state.total, float(np.finfo(np.float32).tiny))[..., None]
