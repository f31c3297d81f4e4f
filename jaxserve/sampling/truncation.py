"""Which tokens top-k, top-p and min-p keep, without sorting the vocabulary.

Tokens are ordered by logit, ties by id. Each rule keeps a prefix of that order, so it is enough to find the last token
kept: bisection over the bits of the float, then, only where ties straddle the cut, over ids. Every probe is one pass.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

INFINITY_BITS = 0x7F800000
TINY = float(np.finfo(np.float32).tiny)


def kept_tokens(deficit: jax.Array, top_k: jax.Array, top_p: jax.Array, min_p: jax.Array) -> jax.Array:
    """Return which tokens [R, V] stay, the likeliest always among them.

    Args:
        deficit: f32 [R, V], how far each logit is below the row's largest, after temperature: at least +0.
        top_k: int32 [R]; 0 keeps all.
        top_p: f32 [R], of what top-k kept; 1 keeps all.
        min_p: f32 [R], relative to the likeliest token; 0 keeps all.
    """
    everything = jnp.ones(deficit.shape, jnp.bool_)
    limited_k = (top_k > 0) & (top_k < deficit.shape[1])
    kept: jax.Array = lax.cond(
        jnp.any(limited_k),
        lambda: _prefix(deficit, everything.astype(jnp.float32), top_k.astype(jnp.float32)) | ~limited_k[:, None],
        lambda: everything,
    )

    def nucleus() -> jax.Array:
        weight = jnp.where(kept, jnp.exp(-deficit), 0.0)
        return _prefix(deficit, weight, top_p * jnp.sum(weight, axis=1)) | (top_p >= 1.0)[:, None]

    kept &= lax.cond(jnp.any(top_p < 1.0), nucleus, lambda: everything)
    return kept & (deficit <= -jnp.log(min_p)[:, None])


def _prefix(deficit: jax.Array, weight: jax.Array, target: jax.Array) -> jax.Array:
    """Mark the shortest prefix of the order whose weight [R, V] reaches target [R]."""
    target = jnp.maximum(target, TINY)  # never an empty prefix

    def reaches(bits: jax.Array) -> jax.Array:
        bound = lax.bitcast_convert_type(bits, jnp.float32)
        return _total(weight, deficit <= bound[:, None]) >= target

    # Floats that are not negative are ordered as their bits are.
    last = lax.bitcast_convert_type(_bisect(reaches, target.shape, INFINITY_BITS), jnp.float32)[:, None]
    token = lax.broadcasted_iota(jnp.int32, deficit.shape, 1)
    before, tied = deficit < last, deficit == last
    vocab = deficit.shape[1]

    def reaches_at(bound: jax.Array) -> jax.Array:
        return _total(weight, before | (tied & (token <= bound[:, None]))) >= target

    last_id: jax.Array = lax.cond(
        jnp.any(jnp.sum(tied.astype(jnp.int32), axis=1) > 1),
        lambda: _bisect(reaches_at, target.shape, vocab - 1),
        lambda: jnp.full(target.shape, vocab - 1, jnp.int32),
    )
    return before | (tied & (token <= last_id[:, None]))


def _total(weight: jax.Array, chosen: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(chosen, weight, 0.0), axis=1)


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
