"""kv_write as one XLA scatter: aliased in place when the cache is donated."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def kv_write(kv_pages: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array, *, layer: int) -> jax.Array:
    """See api.py."""
    size = kv_pages.shape[4]
    page, offset = slots // size, slots % size
    # One scatter for both halves: every update is the [2, K, D] of one token.
    new = jnp.stack([k, v], axis=1).astype(kv_pages.dtype)
    return kv_pages.at[layer, page, :, :, offset].set(new, mode="promise_in_bounds")
