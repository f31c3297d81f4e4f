"""ragged_attention in plain XLA: a block of queries at a time, against blocks of the keys that its rows have, and no others.

The softmax over blocks of keys is the online one (Milakov and Gimelshein 2018; Dao et al. 2022).
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from pallas_kernels.ragged_paged_attention import AttentionOptions

BLOCK = 128  # queries, and keys
_MASKED = -1e30  # finite: a token of no row has nothing but masked scores

Sums = tuple[jax.Array, jax.Array, jax.Array]
"""Of some keys: largest scores [K,N], and sums of weights [K,N] and of weighted values [K,N,D] relative to these."""


def ragged_attention(q: jax.Array, k: jax.Array, v: jax.Array, query_start: jax.Array, options: AttentionOptions) -> jax.Array:
    """See api.py."""
    tokens, heads, head_dim = q.shape
    kv_heads, size = k.shape[1], -(-tokens // BLOCK) * BLOCK
    place = jnp.arange(size, dtype=jnp.int32)
    row = jnp.searchsorted(query_start[1:], place, side="right", method="compare_all").astype(jnp.int32)
    real = place < query_start[-1]
    last_row = query_start.shape[0] - 2

    def by_head(array: jax.Array) -> jax.Array:
        """[T,N,D] to [N,T,D], padded to blocks; what is of no row is 0, for NaN times 0 is NaN."""
        padded = jnp.pad(array, ((0, size - tokens), (0, 0), (0, 0)))
        return jnp.where(real[:, None, None], padded, jnp.zeros((), array.dtype)).transpose(1, 0, 2)

    queries, keys, values = (by_head(array) for array in (q, k, v))
    queries = queries.reshape(kv_heads, -1, size, head_dim)

    def block(first: jax.Array) -> jax.Array:
        """The queries from `first` on: [K,G*B,D]."""
        mine = jax.lax.dynamic_slice_in_dim(queries, first, BLOCK, 2).reshape(kv_heads, -1, head_dim)
        here = first + jnp.arange(BLOCK, dtype=jnp.int32)
        begin = query_start[jnp.minimum(row[first], last_row)]
        end = query_start[jnp.minimum(row[first + BLOCK - 1], last_row) + 1]
        if options.window is not None:
            begin, end = jnp.maximum(begin, first - options.window + 1), jnp.minimum(end, first + BLOCK - 1 + options.window)

        def with_keys(number: jax.Array, sums: Sums) -> Sums:
            start = number * BLOCK
            its_keys, its_values = (jax.lax.dynamic_slice_in_dim(array, start, BLOCK, 1) for array in (keys, values))
            there = start + jnp.arange(BLOCK, dtype=jnp.int32)
            seen = (row[here][:, None] == row[there][None]) & real[there][None]
            if options.window is not None:
                seen &= jnp.abs(here[:, None] - there[None]) < options.window
            return _added(sums, mine, its_keys, its_values, jnp.tile(seen, (mine.shape[1] // BLOCK, 1)), options)

        zeros = partial(jnp.zeros, dtype=jnp.float32)
        nothing = jnp.full(mine.shape[:2], _MASKED, jnp.float32), zeros(mine.shape[:2]), zeros(mine.shape)
        _, weights, weighted = jax.lax.fori_loop(begin // BLOCK, (end + BLOCK - 1) // BLOCK, with_keys, nothing)
        attended: jax.Array = (weighted / jnp.maximum(weights, 1e-30)[:, :, None]).astype(q.dtype)
        return attended

    blocks = jax.lax.map(block, jnp.arange(0, size, BLOCK, dtype=jnp.int32))
    whole = blocks.reshape(-1, heads, BLOCK, head_dim).transpose(0, 2, 1, 3).reshape(size, heads, head_dim)[:tokens]
    return jnp.where(real[:tokens, None, None], whole, jnp.zeros((), q.dtype))


def _added(
    sums: Sums, queries: jax.Array, keys: jax.Array, values: jax.Array, seen: jax.Array, options: AttentionOptions
) -> Sums:
    """With a block of keys [K,B,D]; `seen` [N,B]."""
    largest, weights, weighted = sums
    scores = jnp.einsum("knd,kbd->knb", queries, keys, preferred_element_type=jnp.float32) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    scores = jnp.where(seen[None], scores, _MASKED)
    larger = jnp.maximum(largest, jnp.max(scores, axis=-1))
    each = jnp.where(seen[None], jnp.exp(scores - larger[:, :, None]), 0.0)
    before = jnp.exp(largest - larger)
    added = jnp.einsum("knb,kbd->knd", each.astype(values.dtype), values, preferred_element_type=jnp.float32)
    return larger, weights * before + jnp.sum(each, axis=-1), weighted * before[:, :, None] + added
