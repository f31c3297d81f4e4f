"""sparse_paged_attention in plain XLA: a block of tokens at a time, online softmax over blocks of their own keys."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.cached_vectors import Block, CachedVectors, Tokens
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.ragged_paged_attention.online_softmax import LOWEST, Softmax, absorb, normalize
from pallas_kernels.ragged_paged_attention.query_tiles import Rows

TOKENS = 32  # a block
KEYS = 128  # a trip: 9 MiB of vectors in float32, of DeepSeek-V3.2's 576 numbers


def sparse_paged_attention(
    q: jax.Array,
    positions: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    *,
    layer: int,
    options: AttentionOptions,
    kv_scales: jax.Array | None,
) -> jax.Array:
    """See api.py."""
    rows = Rows(page_table, query_start, kv_length)
    # The layer is an argument, so that all layers of a model share one trace.
    attended: jax.Array = _attend(q, positions, (kv_pages, kv_scales), rows, jnp.int32(layer), options=options)
    return attended


@partial(jax.jit, static_argnames=("options",))
def _attend(
    q: jax.Array,
    positions: jax.Array,
    cache: tuple[jax.Array, jax.Array | None],
    rows: Rows,
    layer: jax.Array,
    *,
    options: AttentionOptions,
) -> jax.Array:
    keys, tokens = CachedVectors.of(*cache, layer), Tokens.of(rows, q.shape[0])
    value_dim = options.value_dim or q.shape[2]
    step = min(KEYS, positions.shape[1])
    padded = jnp.pad(positions, ((0, 0), (0, -positions.shape[1] % step)), constant_values=-1)

    def block(of: Block) -> jax.Array:
        table = rows.page_table[of(tokens.row)]
        state = _attend_block(keys, of(q).astype(jnp.float32), of(padded), table, step, options)
        return normalize(state).astype(q.dtype)

    return tokens.in_blocks(TOKENS, block, jnp.zeros((*q.shape[:2], value_dim), q.dtype))


def _attend_block(
    keys: CachedVectors, q: jax.Array, positions: jax.Array, table: jax.Array, step: int, options: AttentionOptions
) -> Softmax:
    """Of q[B, H, D] over positions[B, N] of table[B, M], `step` of them a trip: [B, H]."""
    count, heads, dim = q.shape
    value_dim = options.value_dim or dim
    most = jnp.max(jnp.sum(positions >= 0, axis=1, dtype=jnp.int32))

    def trip(carry: tuple[jax.Array, Softmax]) -> tuple[jax.Array, Softmax]:
        start, state = carry
        there = lax.dynamic_slice_in_dim(positions, start, step, 1)
        live = there >= 0
        found = keys.fetch(table, jnp.maximum(there, 0), 0, dim)
        scores = jnp.einsum("bhd,bsd->bhs", q, found) * options.scale
        values = jnp.where(live[:, :, None], found[:, :, :value_dim], 0.0)  # a weight of 0 does not cancel a NaN
        return start + step, absorb(state, scores, live[:, None], values)

    shape = (count, heads)
    nothing = Softmax(jnp.full(shape, LOWEST), jnp.zeros(shape), jnp.zeros((*shape, value_dim)))
    return lax.while_loop(lambda carry: carry[0] < most, trip, (jnp.int32(0), nothing))[1]
