"""lightning_index in plain XLA: a block of tokens at a time, a block of keys after the other, the best so far kept.

A block of tokens that have no choice reads no key: what sees no more than `top_k` positions attends to all of them. The others go
as far as the longest of them sees.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.cached_vectors import Block, CachedVectors, Tokens
from pallas_kernels.lightning_index.problem import IndexOptions
from pallas_kernels.ragged_paged_attention.query_tiles import Rows

TOKENS = 16  # a block
KEYS = 2048  # a trip: their vectors are 16 MiB in float32, their scores by head 8 MiB, of DeepSeek-V3.2's 64 heads of 128


def lightning_index(
    q: jax.Array,
    weights: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    *,
    layer: int,
    options: IndexOptions,
    kv_scales: jax.Array | None,
) -> jax.Array:
    """See api.py."""
    rows = Rows(page_table, query_start, kv_length)
    # The layer is an argument, so that all layers of a model share one trace.
    chosen: jax.Array = _choose(q, weights, (kv_pages, kv_scales), rows, jnp.int32(layer), options=options)
    return chosen


@partial(jax.jit, static_argnames=("options",))
def _choose(
    q: jax.Array,
    weights: jax.Array,
    cache: tuple[jax.Array, jax.Array | None],
    rows: Rows,
    layer: jax.Array,
    *,
    options: IndexOptions,
) -> jax.Array:
    keys, tokens = CachedVectors.of(*cache, layer), Tokens.of(rows, q.shape[0])
    longest = rows.page_table.shape[1] * keys.page_size
    first = jnp.arange(min(options.top_k, longest), dtype=jnp.int32)[None]
    everything = jnp.where(first < tokens.seen[:, None], first, -1)
    if longest <= options.top_k:
        return everything
    pages = min(max(1, KEYS // keys.page_size), rows.page_table.shape[1])
    tables = jnp.pad(rows.page_table, ((0, 0), (0, -rows.page_table.shape[1] % pages)))

    def block(of: Block) -> jax.Array:
        seen, table = of(tokens.seen), tables[of(tokens.row)]
        best = _best(keys, of(q).astype(jnp.float32), of(weights), table, seen, pages, options)
        return jnp.where((seen > options.top_k)[:, None], best, of(everything))

    return tokens.in_blocks(TOKENS, block, everything)


def _best(
    keys: CachedVectors,
    q: jax.Array,
    weights: jax.Array,
    table: jax.Array,
    seen: jax.Array,
    pages: int,
    options: IndexOptions,
) -> jax.Array:
    """The best positions int32[B, top_k] of q[B, I, N], of the first seen[B]; `pages` of each table[B, M] a trip."""
    count, step = q.shape[0], pages * keys.page_size
    longest = jnp.max(seen)

    def trip(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        start, best, places = carry
        there = jnp.broadcast_to(start + jnp.arange(step, dtype=jnp.int32)[None], (count, step))
        products = jnp.einsum("bin,bsn->bis", q, keys.fetch(table, there, options.first, q.shape[2]))
        scores = jnp.einsum("bi,bis->bs", weights, jnp.maximum(products, 0.0))
        scores = jnp.where(there < seen[:, None], scores, -jnp.inf)
        best, which = lax.top_k(jnp.concatenate([best, scores], axis=1), options.top_k)
        return start + step, best, jnp.take_along_axis(jnp.concatenate([places, there], axis=1), which, axis=1)

    shape = (count, options.top_k)
    nothing = jnp.int32(0), jnp.full(shape, -jnp.inf, jnp.float32), jnp.full(shape, -1, jnp.int32)
    return lax.while_loop(lambda carry: (longest > options.top_k) & (carry[0] < longest), trip, nothing)[2]
