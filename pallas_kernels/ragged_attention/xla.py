"""ragged_attention in plain XLA: some queries at a time against the keys of all rows, of which their own row's count."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.ragged_paged_attention import AttentionOptions

BLOCK = 128  # queries whose scores are held at once
_MASKED = -1e30  # finite: a token of no row has nothing but masked scores


def ragged_attention(q: jax.Array, k: jax.Array, v: jax.Array, query_start: jax.Array, options: AttentionOptions) -> jax.Array:
    """See api.py."""
    tokens, heads, head_dim = q.shape
    block, place = min(BLOCK, tokens), jnp.arange(tokens, dtype=jnp.int32)
    row = jnp.searchsorted(query_start[1:], place, side="right", method="compare_all").astype(jnp.int32)
    real = place < query_start[-1]
    k, v = (jnp.where(real[:, None, None], array, jnp.zeros((), array.dtype)) for array in (k, v))  # NaN times 0 is NaN
    grouped = jnp.where(real[:, None, None], q, jnp.zeros((), q.dtype)).reshape(tokens, k.shape[1], -1, head_dim)

    def attend(first: jax.Array) -> jax.Array:
        """The queries from `first` on: [B, K, H/K, D]."""
        queries = jax.lax.dynamic_slice_in_dim(grouped, first, block)
        its_row, its_place = (jax.lax.dynamic_slice_in_dim(array, first, block) for array in (row, place))
        scores = jnp.einsum("bkgd,tkd->kgbt", queries, k, preferred_element_type=jnp.float32) * options.scale
        if options.soft_cap is not None:
            scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
        seen = (its_row[:, None] == row[None]) & real[None]
        if options.window is not None:
            seen &= jnp.abs(its_place[:, None] - place[None]) < options.window
        weights = jax.nn.softmax(jnp.where(seen[None, None], scores, _MASKED), axis=-1)
        return jnp.einsum("kgbt,tkd->bkgd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32).astype(q.dtype)

    firsts = jnp.minimum(jnp.arange(0, tokens, block, dtype=jnp.int32), tokens - block)
    blocks = jax.lax.map(attend, firsts)
    whole = jnp.concatenate([blocks[:-1].reshape(-1, *blocks.shape[2:]), blocks[-1, tokens % block and -(tokens % block) :]])
    return jnp.where(real[:, None, None], whole.reshape(tokens, heads, head_dim), jnp.zeros((), q.dtype))
