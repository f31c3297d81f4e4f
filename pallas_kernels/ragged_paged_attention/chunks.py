"""Attention within chunks (Llama 4, Meta 2025) as plain attention: of each row one is made for every chunk that it lies in.

So every implementation computes it, and reads no key of another chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.ragged_paged_attention.query_tiles import Rows


class ChunkedCall(NamedTuple):
    """What to attend with: q [T', H, D] with T' >= T, and the rows of chunks."""

    q: jax.Array
    rows: Rows


def by_chunk(q: jax.Array, rows: Rows, chunk: int, page_size: int) -> ChunkedCall:
    """The call whose first T results are those of q[T, H, D] in `rows`, in chunks of so many positions, whole pages each.

    With more tokens than rows there still are, so that prompts are not taken for decodes.
    """
    tokens, (count, pages) = q.shape[0], rows.page_table.shape
    most = (tokens + chunk - 2) // chunk + 1  # chunks that so many tokens in a row lie in
    cut = _rows_of_chunks(rows, chunk, most, min(chunk // page_size, pages), page_size)
    if tokens > count:
        q = jnp.pad(q, ((0, max(count * most + 1 - tokens, 0)), (0, 0), (0, 0)))
    return ChunkedCall(q, cut)


def _rows_of_chunks(rows: Rows, chunk: int, most: int, columns: int, page_size: int) -> Rows:
    """`most` rows for each one; those behind its last chunk are empty."""
    first = rows.kv_length - rows.counts
    number = jnp.arange(most, dtype=jnp.int32)[None]
    start = (jax.lax.div(first, jnp.int32(chunk))[:, None] + number) * chunk
    end = jnp.minimum(start + chunk, rows.kv_length[:, None])
    queries = jnp.maximum(end - jnp.maximum(start, first[:, None]), 0)
    length = jnp.where(queries > 0, end - start, 0).reshape(-1)
    ends = jnp.cumsum(queries.reshape(-1), dtype=jnp.int32)
    column = jax.lax.div(start, jnp.int32(page_size))[:, :, None] + jnp.arange(columns, dtype=jnp.int32)[None, None]
    column = jnp.minimum(column, rows.page_table.shape[1] - 1).reshape(len(first), -1)
    table = jnp.take_along_axis(rows.page_table, column, axis=1).reshape(-1, columns)
    return Rows(table, jnp.concatenate([jnp.zeros(1, jnp.int32), ends]), length)
