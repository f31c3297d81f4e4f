"""Pages of keys and values that are made of the latents of rows, one row's pages behind the other's."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.ragged_paged_attention.query_tiles import Rows

BLOCK = 1024
"""Tokens whose keys and values are made at once."""
MULTIPLE = 16
"""Of head dims: what kernels read."""


class Pages(NamedTuple):
    """Where the workspace has rows' pages: `first` int32[R] behind the null page, `ends` int32[R], all without that page."""

    first: jax.Array
    ends: jax.Array

    def table(self, most: int) -> jax.Array:
        """int32[R, most]: the pages of each row, 0 behind its last one."""
        column = jnp.arange(most, dtype=jnp.int32)
        return jnp.where(column[None] < (self.ends - self.first)[:, None], self.first[:, None] + column[None] + 1, 0)


class Heads(NamedTuple):
    """Projections of some heads: key_up[h, N, C], value_up[h, V, C], and how many numbers of a key all heads share."""

    key_up: jax.Array
    value_up: jax.Array
    shared: int


class Source(NamedTuple):
    """Rows' pages in one layer of a cache of latents.

    Attributes:
        pages: [L * P, S, D'], float8 as bytes.
        scales: [L * P, S]; None of a cache that is not quantized.
        table: int32[R, M], rows' pages among them.
        rows: where they go.
    """

    pages: jax.Array
    scales: jax.Array | None
    table: jax.Array
    rows: Pages

    def fetch(self, first: jax.Array, count: int, dtype: jnp.dtype) -> jax.Array:
        """Vectors[count, S, D'] of so many pages of the workspace; behind the last row's, of any."""
        place = first + jnp.arange(count, dtype=jnp.int32)
        row = jnp.minimum(jnp.sum(self.rows.ends[None] <= place[:, None], axis=1, dtype=jnp.int32), self.table.shape[0] - 1)
        column = jnp.clip(place - self.rows.first[row], 0, self.table.shape[1] - 1)
        page = self.table[row, column]
        found = self.pages.at[page].get(mode="promise_in_bounds")
        if self.pages.dtype == jnp.uint8:
            found = lax.bitcast_convert_type(found, jnp.float8_e4m3fn)
        if self.scales is None:
            return found.astype(dtype)
        scales = self.scales.at[page].get(mode="promise_in_bounds").astype(jnp.float32)
        return (found.astype(jnp.float32) * scales[..., None]).astype(dtype)

    @classmethod
    def of(cls, kv_pages: jax.Array, kv_scales: jax.Array | None, rows: Rows, layer: int) -> Source:
        if kv_pages.dtype == jnp.float8_e4m3fn:  # a CPU gathers bytes without converting the whole cache
            kv_pages = lax.bitcast_convert_type(kv_pages, jnp.uint8)
        count, size, dim = kv_pages.shape[1], *kv_pages.shape[4:]
        scales = None if kv_scales is None else kv_scales.reshape(-1, size)
        return cls(kv_pages.reshape(-1, size, dim), scales, rows.page_table + layer * count, pages_of(rows, size))


def pages_of(rows: Rows, page_size: int) -> Pages:
    """Where rows that have tokens get pages; the others get none."""
    needed = jnp.where(rows.counts > 0, pages_needed(rows, page_size), 0)
    ends = jnp.cumsum(needed)
    return Pages(ends - needed, ends)


def pages_needed(rows: Rows, page_size: int) -> jax.Array:
    """int32[R]: pages of each row's keys."""
    needed: jax.Array = lax.div(rows.kv_length + (page_size - 1), jnp.int32(page_size))
    return needed


def workspace(num_pages: int, heads: int, page_size: int, key_dim: int, value_dim: int, dtype: jnp.dtype) -> jax.Array:
    """[1, pages, 2, h, S, D] for at least so many pages beside the null page, in whole blocks; nobody has written to it."""
    block = block_pages(num_pages, page_size)
    dim = head_dim(key_dim, value_dim)
    pages: jax.Array = lax.empty((1, 1 + -(-num_pages // block) * block, 2, heads, page_size, dim), dtype)
    return pages


def head_dim(key_dim: int, value_dim: int) -> int:
    """Numbers of a key, and of a value, in the workspace."""
    return -(-max(key_dim, value_dim) // MULTIPLE) * MULTIPLE


def block_pages(num_pages: int, page_size: int) -> int:
    return min(num_pages, max(1, BLOCK // page_size))


def filled(work: jax.Array, source: Source, heads: Heads) -> jax.Array:
    """The workspace with keys and values of all rows."""
    pages, size = work.shape[1] - 1, work.shape[4]
    block = block_pages(pages, size)

    def trip(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        first, work = carry
        made = _made(source.fetch(first, block, work.dtype), heads, work.shape[5])
        zero = jnp.int32(0)
        return first + block, lax.dynamic_update_slice(work, made[None], (zero, first + 1, zero, zero, zero, zero))

    used = jnp.minimum(source.rows.ends[-1], pages)
    full: jax.Array = lax.while_loop(lambda carry: carry[0] < used, trip, (jnp.int32(0), work))[1]
    return full


def _made(vectors: jax.Array, heads: Heads, dim: int) -> jax.Array:
    """Keys and values [B, 2, h, S, dim] of vectors[B, S, D']."""
    count, size = vectors.shape[:2]
    rank = heads.key_up.shape[2]
    latents, shared = vectors[..., :rank], vectors[..., rank : rank + heads.shared]

    def padded(*parts: jax.Array) -> jax.Array:
        joined = jnp.concatenate(parts, axis=-1)
        return jnp.pad(joined, ((0, 0), (0, 0), (0, 0), (0, dim - joined.shape[-1])))

    def project(matrix: jax.Array) -> jax.Array:
        made = jnp.einsum("bsc,hnc->bhsn", latents, matrix.astype(latents.dtype), preferred_element_type=jnp.float32)
        return made.astype(vectors.dtype)

    shared = jnp.broadcast_to(shared[:, None], (count, heads.key_up.shape[0], size, heads.shared))
    return jnp.stack([padded(project(heads.key_up), shared), padded(project(heads.value_up))], axis=1)
