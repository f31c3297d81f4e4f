"""The vectors of a paged cache of latents, one by one, and a step's tokens in blocks: for what reads no pages in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import checks
from pallas_kernels.ragged_paged_attention.query_tiles import Rows, token_rows

Block = Callable[[jax.Array], jax.Array]
"""Takes the same block of tokens out of any array [T, ...]."""


class CachedVectors(NamedTuple):
    """One layer of a cache [L, P, 1, 1, S, D].

    Attributes:
        vectors: [L * P * S, D]; float8 as bytes (uint8), of which a CPU gathers without converting the whole cache.
        scales: [L * P * S]; None of a cache that is not quantized.
        start: int32, where the layer begins.
        page_size: S.
    """

    vectors: jax.Array
    scales: jax.Array | None
    start: jax.Array
    page_size: int

    @classmethod
    def of(cls, kv_pages: jax.Array, kv_scales: jax.Array | None, layer: jax.Array) -> CachedVectors:
        _, pages, _, _, size, dim = kv_pages.shape
        if kv_pages.dtype == jnp.float8_e4m3fn:
            kv_pages = lax.bitcast_convert_type(kv_pages, jnp.uint8)
        scales = None if kv_scales is None else kv_scales.reshape(-1)
        return cls(kv_pages.reshape(-1, dim), scales, layer * (pages * size), size)

    def fetch(self, tables: jax.Array, positions: jax.Array, first: int, dim: int) -> jax.Array:
        """Numbers `first` to `first + dim` of the vectors at positions[..., N] of rows whose pages are tables[..., M]: f32."""
        size = jnp.int32(self.page_size)
        page = jnp.take_along_axis(tables, lax.div(positions, size), axis=-1, mode="promise_in_bounds")
        places = (self.start + page * size + lax.rem(positions, size)).reshape(-1)
        found = jax.vmap(lambda place: lax.dynamic_slice(self.vectors, (place, jnp.int32(first)), (1, dim))[0])(places)
        if found.dtype == jnp.uint8:
            found = lax.bitcast_convert_type(found, jnp.float8_e4m3fn)
        found = found.astype(jnp.float32)
        if self.scales is not None:
            found *= self.scales.at[places].get(mode="promise_in_bounds").astype(jnp.float32)[:, None]
        return found.reshape(*positions.shape, dim)


class Tokens(NamedTuple):
    """The tokens of a step, [T]: the row of each, how many keys it sees (0 for padding), and how many are real."""

    row: jax.Array
    seen: jax.Array
    real: jax.Array

    @classmethod
    def of(cls, rows: Rows, tokens: int) -> Tokens:
        token = jnp.arange(tokens, dtype=jnp.int32)
        row, real = token_rows(rows, token)
        seen = token + 1 + rows.kv_length[row] - rows.query_start[row + 1]
        return cls(row, jnp.where(real, seen, 0), rows.query_start[-1])

    def in_blocks(self, size: int, compute: Callable[[Block], jax.Array], out: jax.Array) -> jax.Array:
        """`out` [T, ...] with what is computed of a block of `size` tokens after the other, as far as they are real.

        `compute` is given what takes the block out of arrays, and returns what is to be in its place. The last block may begin
        within the one before it: its tokens are computed again.
        """
        tokens = self.row.shape[0]
        size = min(size, tokens)

        def trip(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            number, out = carry
            at = jnp.minimum(number * size, tokens - size)
            made = compute(lambda array: lax.dynamic_slice_in_dim(array, at, size))
            return number + 1, lax.dynamic_update_slice_in_dim(out, made, at, 0)

        return lax.while_loop(lambda carry: carry[0] * size < self.real, trip, (jnp.int32(0), out))[1]


def require_vectors(kv_pages: jax.Array, kv_scales: jax.Array | None, layer: int) -> None:
    """Check a cache of one vector a token: raises as `checks.require_pages`, and ValueError if it has values or several heads."""
    checks.require_pages(kv_pages, kv_scales, layer)
    if kv_pages.shape[2:4] != (1, 1):
        raise ValueError(f"kv_pages must be [L, P, 1, 1, S, D], one vector a token, got {list(kv_pages.shape)}")
