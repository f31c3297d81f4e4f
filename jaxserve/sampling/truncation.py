"""Which tokens top-k, top-p and min-p keep, without sorting the vocabulary.

Tokens are ordered by logit, ties by id. Each rule keeps a prefix of that order, so it is enough to find the last token
kept: bisection over the bits of the float, then, only where ties straddle the cut, over ids. Every probe is one pass, and
between devices one sum of a number a row.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxserve.sampling.vocabulary import Vocabulary

INFINITY_BITS = 0x7F800000
TINY = float(np.finfo(np.float32).tiny)


def kept_tokens(deficit: jax.Array, top_k: jax.Array, top_p: jax.Array, min_p: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """Return which tokens [R, C] stay, the likeliest always among them.

    Args:
        deficit: f32 [R, C], how far each logit is below the row's largest, after temperature: at least +0.
        top_k: int32 [R]; 0 keeps all.
        top_p: f32 [R], of what top-k kept; 1 keeps all.
        min_p: f32 [R], relative to the likeliest token; 0 keeps all.
        vocabulary: which tokens the columns are.
    """
    everything = jnp.ones(deficit.shape, jnp.bool_)
    limited_k = (top_k > 0) & (top_k < vocabulary.size)
    kept: jax.Array = lax.cond(
        jnp.any(limited_k),
        lambda: _prefix(deficit, everything.astype(jnp.float32), top_k.astype(jnp.float32), vocabulary) | ~limited_k[:, None],
        lambda: everything,
    )

    def nucleus() -> jax.Array:
        weight = jnp.where(kept, jnp.exp(-deficit), 0.0)
        target = top_p * vocabulary.total(jnp.sum(weight, axis=1))
        return _prefix(deficit, weight, target, vocabulary) | (top_p >= 1.0)[:, None]

    kept &= lax.cond(jnp.any(top_p < 1.0), nucleus, lambda: everything)
    return kept & (deficit <= -jnp.log(min_p)[:, None])


def _prefix(deficit: jax.Array, weight: jax.Array, target: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """Mark the shortest prefix of the order whose weight [R, C] reaches target [R]."""
    target = jnp.maximum(target, TINY)  # never an empty prefix

    def total(chosen: jax.Array) -> jax.Array:
        return vocabulary.total(jnp.sum(jnp.where(chosen, weight, 0.0), axis=1))

    def reaches(bits: jax.Array) -> jax.Array:
        bound = lax.bitcast_convert_type(bits, jnp.float32)
        return total(deficit <= bound[:, None]) >= target

    # Floats that are not negative are ordered as their bits are.
    last = lax.bitcast_convert_type(_bisect(reaches, target.shape, INFINITY_BITS), jnp.float32)[:, None]
    token = vocabulary.tokens(deficit.shape)
    before, tied = deficit < last, deficit == last
    last_token = vocabulary.size - 1

    def reaches_at(bound: jax.Array) -> jax.Array:
        return total(before | (tied & (token <= bound[:, None]))) >= target

    last_id: jax.Array = lax.cond(
        jnp.any(vocabulary.total(jnp.sum(tied.astype(jnp.int32), axis=1)) > 1),
        lambda: _bisect(reaches_at, target.shape, last_token),
        lambda: jnp.full(target.shape, last_token, jnp.int32),
    )
    return before | (tied & (token <= last_id[:, None]))


def _bisect(reaches: Callable[[jax.Array], jax.Array], shape: tuple[int, ...], high: int) -> jax.Array:
    """Find for every row the smallest int32 in 0..high that `reaches`; `high` where none does."""

    def halve(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, top = bounds
        middle = low + (top - low) // 2
        enough = reaches(middle)
        return jnp.where(enough, low, jnp.minimum(middle + 1, top)), jnp.where(enough, middle, top)

    start = (jnp.zeros(shape, jnp.int32), jnp.full(shape, high, jnp.int32))
    found: jax.Array = lax.fori_loop(0, high.bit_length(), halve, start)[1]
    return found
