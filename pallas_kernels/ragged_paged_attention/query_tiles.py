"""The rows of a batch, cut into blocks of consecutive queries: what kernels take as tiles."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Rows(NamedTuple):
    """The rows of the batch: page_table [R, M], query_start [R + 1], kv_length [R]."""

    page_table: jax.Array
    query_start: jax.Array
    kv_length: jax.Array

    @property
    def counts(self) -> jax.Array:
        """How many queries each has, [R]."""
        return self.query_start[1:] - self.query_start[:-1]


class Cut(NamedTuple):
    """Rows cut into blocks of consecutive queries, int32 [I]: of which row, from which of its positions and which token on.

    `queries` is how many, 0 for no block; `first` int32 [R] is the first block of each row.
    """

    row: jax.Array
    position: jax.Array
    token: jax.Array
    queries: jax.Array
    first: jax.Array


def token_rows(rows: Rows, token: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the row of each token, and whether it is a real one; a padding token is said to be of the last row."""
    row = jnp.sum((rows.query_start[None, 1:] <= token[:, None]).astype(jnp.int32), axis=1)
    return jnp.minimum(row, rows.kv_length.shape[0] - 1), token < rows.query_start[-1]


def cut(rows: Rows, counts: jax.Array, queries: int, most: int) -> Cut:
    """Cut the first `counts` [R] queries of rows, all or none of each, into at most `most` blocks of at most `queries`."""
    blocks = -(-counts // queries)
    ends = jnp.cumsum(blocks)
    first = ends - blocks
    block = jnp.arange(most, dtype=jnp.int32)
    row = jnp.minimum(jnp.sum((ends[None, :] <= block[:, None]).astype(jnp.int32), axis=1), counts.shape[0] - 1)
    token, end, length = rows.query_start[row] + (block - first[row]) * queries, rows.query_start[row + 1], rows.kv_length[row]
    count = jnp.where(block < ends[-1], jnp.minimum(end - token, queries), 0)
    return Cut(row, length - end + token, token, count, first)
