"""Tiles of rows of one group in Mosaic GPU: their list, which XLA makes, and how a tile's own rows are stored."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.grouped_matmul.mosaic_gpu_tiles import most_row_tiles


class RowTiles(NamedTuple):
    """The row tiles in order of their rows, int32 [A] each, and how many there are, int32 [1].

    Attributes:
        group: whose weights.
        at: the first row that is multiplied.
        first: the first row of the group's among them.
        rows: of the group's from there on.
        tiles: their number; the entries behind them mean nothing.
    """

    group: jax.Array
    at: jax.Array
    first: jax.Array
    rows: jax.Array
    tiles: jax.Array


def list_tiles(group_sizes: jax.Array, rows: int, tile: int) -> RowTiles:
    """List the row tiles of groups that lie one behind the other in `rows` rows, a multiple of 8, `tile` or more."""
    ends = jnp.cumsum(group_sizes)
    starts = (ends - group_sizes) // mosaic.ROW_TILE * mosaic.ROW_TILE  # of whole rows of tiles of shared memory
    tiles = jnp.where(group_sizes > 0, -(-(ends - starts) // tile), 0)
    last = jnp.cumsum(tiles)
    number = jnp.arange(most_row_tiles(rows, group_sizes.shape[0], tile), dtype=jnp.int32)
    group = jnp.minimum(jnp.sum((last[None, :] <= number[:, None]).astype(jnp.int32), axis=1), group_sizes.shape[0] - 1)
    start = starts[group] + (number - last[group] + tiles[group]) * tile
    first = jnp.maximum(start, ends[group] - group_sizes[group])
    end = jnp.minimum(start + tile, ends[group])
    # The last tile must not reach behind the rows: it starts earlier, with rows that are not its group's.
    return RowTiles(group, jnp.clip(start, 0, rows - tile), first, end - first, last[-1:])


def store_rows(staged: Any, out: Any, start: jax.Array, end: jax.Array, at: jax.Array, columns: Any) -> None:
    """Store rows [start, end) of a part of a tile that begins at row `at` of the result: powers of two of them at a time."""
    count = end - start
    size = 1 << staged.shape[0].bit_length() - 1  # the most that it can be
    while size:
        pl.when((count & size) != 0)(partial(_store, staged, out, start, at, columns, size))
        start += count & size
        size //= 2


def _store(staged: Any, out: Any, start: jax.Array, at: jax.Array, columns: Any, size: int) -> None:
    plgpu.copy_smem_to_gmem(staged.at[pl.ds(start, size)], out.at[pl.ds(at + start, size), columns])
