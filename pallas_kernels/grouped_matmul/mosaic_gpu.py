"""grouped_matmul in Mosaic GPU, for Hopper: tiles of rows of one group, as many as the groups have.

A tile has rows of one group, from the group's start on, and some columns of the result. XLA lists the row tiles, and each thread
block takes every 132nd tile. One warpgroup loads rows and weights by TMA into a ring, 64 of I at a time and ahead into the next
tile; the others multiply, 64 rows each, and sum in registers. The last tile of a group computes whole 64 rows and stores those
that are the group's: powers of two of them at a time, since the size of a TMA copy is static (from jax's `ragged_dot_mgpu`,
whose tiles are of all groups and whose grid does not shrink with them).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.grouped_matmul.mosaic_gpu_rows import list_tiles, store_rows
from pallas_kernels.grouped_matmul.mosaic_gpu_tiles import STAGED_COLUMNS, STEP, WGMMA_ROWS, Tiles, choose_tiles
from pallas_kernels.grouped_matmul.mosaic_gpu_words import multiply_words
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.matmul import Matrix, Weight

LOADING_REGISTERS = 40  # of a thread that loads


def grouped_matmul(
    x: jax.Array,
    weights: Weight,
    group_sizes: jax.Array,
    *,
    dtype: jnp.dtype,
    expected_rows: int,
    interpret: bool = False,
) -> jax.Array:
    """See api.py. With `interpret` the kernel is interpreted, on CPUs."""
    if isinstance(weights, Matrix):
        return multiply_words(x, weights, group_sizes, dtype=dtype, expected_rows=expected_rows, interpret=interpret)
    problem = GroupedProblem.of(x, weights, dtype, expected_rows)
    tiles = choose_tiles(problem, 2) if interpret else choose_tiles(problem)
    product: jax.Array = _multiply(x, weights, group_sizes, dtype=dtype, tiles=tiles, interpret=interpret)
    return product


@partial(jax.jit, static_argnames=("dtype", "tiles", "interpret"))  # so that all layers of a model share a trace and a kernel
def _multiply(
    x: jax.Array, weights: jax.Array, group_sizes: jax.Array, *, dtype: jnp.dtype, tiles: Tiles, interpret: bool
) -> jax.Array:
    rows = x.shape[0]
    if padding := max(tiles.rows, -(-rows // mosaic.ROW_TILE) * mosaic.ROW_TILE) - rows:
        x = jnp.pad(x, ((0, padding), (0, 0)))
    listed = list_tiles(group_sizes, x.shape[0], tiles.rows)
    run = plgpu.kernel(
        partial(_kernel, tiles=tiles),
        out_type=jax.ShapeDtypeStruct((x.shape[0], weights.shape[2]), dtype),
        grid=(tiles.programs,),
        grid_names=("program",),
        num_threads=tiles.groups + 1,
        thread_name="group",
        scratch_types=_scratch(tiles, x.dtype, dtype),
        kernel_name="grouped_matmul",
        interpret=mosaic.interpreter() if interpret else None,
    )
    out = run(x, weights, *listed)[:rows]
    owned = jnp.arange(rows, dtype=jnp.int32) < jnp.sum(group_sizes)
    return jnp.where(owned[:, None], out, jnp.zeros((), dtype))


def _scratch(tiles: Tiles, dtype: Any, result_dtype: Any) -> list[Any]:
    """Describe the shared memory, in the order of `_Refs`."""
    return [
        mosaic.tiled((tiles.slots, tiles.row_groups, WGMMA_ROWS, STEP), dtype),
        mosaic.tiled((tiles.slots, tiles.column_groups, STEP, tiles.columns), dtype),
        plgpu.SMEM((tiles.groups, WGMMA_ROWS, STAGED_COLUMNS), result_dtype),
        plgpu.Barrier(num_arrivals=tiles.row_groups + tiles.column_groups, num_barriers=tiles.slots),
        plgpu.Barrier(num_arrivals=tiles.groups, num_barriers=tiles.slots),
    ]


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, outputs, scratch."""

    x: Any
    weights: Any
    group: Any
    at: Any
    first: Any
    rows: Any
    row_tiles: Any
    out: Any
    row_ring: Any
    weight_ring: Any
    staged: Any
    loaded: Any
    free: Any


class _Tile(NamedTuple):
    """What a thread block works on: an entry of `RowTiles`, int32 scalars, and the first column."""

    group: jax.Array
    at: jax.Array
    first: jax.Array
    rows: jax.Array
    column: jax.Array


def _kernel(*arguments: Any, tiles: Tiles) -> None:
    refs = _Refs(*arguments)
    program, group = lax.axis_index("program"), lax.axis_index("group")
    registers = mosaic.divide_registers(tiles.groups, LOADING_REGISTERS)
    steps, columns = refs.x.shape[1] // STEP, refs.out.shape[1] // tiles.width
    # This block's tiles: program, program + programs, ...
    mine = lax.div(refs.row_tiles[0] * columns - program + (tiles.programs - 1), jnp.int32(tiles.programs))

    @pl.when(group < tiles.groups)
    def _compute() -> None:
        mosaic.set_registers(registers, computing=True)

        @pl.loop(0, mine)
        def _each(turn: jax.Array) -> None:
            _multiply_tile(refs, _tile(refs, tiles, program + turn * tiles.programs), group, turn * steps, tiles)

        plgpu.wait_smem_to_gmem(0)

    @pl.when(group == tiles.groups)
    def _load() -> None:
        mosaic.set_registers(registers, computing=False)

        @pl.loop(0, mine)
        def _each(turn: jax.Array) -> None:
            _load_tile(refs, _tile(refs, tiles, program + turn * tiles.programs), turn * steps, tiles)

        # A barrier may not be left while it has completed a phase that nobody awaited.
        for slot in range(tiles.slots):
            pl.when(slot < mine * steps)(partial(plgpu.barrier_wait, refs.free.at[slot]))


def _tile(refs: _Refs, tiles: Tiles, number: jax.Array) -> _Tile:
    """Tile `number`: panels of columns, in each all row tiles, of each the panel's columns."""
    in_panel = refs.row_tiles[0] * tiles.panel
    panel, within = lax.div(number, in_panel), lax.rem(number, in_panel)
    row, column = lax.div(within, jnp.int32(tiles.panel)), lax.rem(within, jnp.int32(tiles.panel))
    return _Tile(refs.group[row], refs.at[row], refs.first[row], refs.rows[row], (panel * tiles.panel + column) * tiles.width)


def _load_tile(refs: _Refs, tile: _Tile, done: jax.Array, tiles: Tiles) -> None:
    """Load a tile's rows and weights, `done` steps of other tiles having gone through the ring before."""

    @pl.loop(0, refs.x.shape[1] // STEP)
    def _step(step: jax.Array) -> None:
        slot = lax.rem(done + step, jnp.int32(tiles.slots))
        pl.when(done + step >= tiles.slots)(lambda: plgpu.barrier_wait(refs.free.at[slot]))
        inputs = pl.ds(pl.multiple_of(step * STEP, STEP), STEP)
        for i in range(tiles.row_groups):
            part = refs.x.at[pl.ds(pl.multiple_of(tile.at + i * WGMMA_ROWS, mosaic.ROW_TILE), WGMMA_ROWS), inputs]
            plgpu.copy_gmem_to_smem(part, refs.row_ring.at[slot, i], refs.loaded.at[slot])
        for i in range(tiles.column_groups):
            column = pl.multiple_of(tile.column + i * tiles.columns, STAGED_COLUMNS)
            part = refs.weights.at[tile.group, inputs, pl.ds(column, tiles.columns)]
            plgpu.copy_gmem_to_smem(part, refs.weight_ring.at[slot, i], refs.loaded.at[slot])


def _multiply_tile(refs: _Refs, tile: _Tile, group: jax.Array, done: jax.Array, tiles: Tiles) -> None:
    """Multiply this warpgroup's part of a tile and store it."""
    row_group, column_group = lax.div(group, jnp.int32(tiles.column_groups)), lax.rem(group, jnp.int32(tiles.column_groups))
    steps = refs.x.shape[1] // STEP

    def multiply(total: Any) -> jax.Array:
        @pl.loop(0, steps)
        def _step(step: jax.Array) -> None:
            slot = lax.rem(done + step, jnp.int32(tiles.slots))
            plgpu.barrier_wait(refs.loaded.at[slot])
            plgpu.wgmma(total, refs.row_ring.at[slot, row_group], refs.weight_ring.at[slot, column_group])
            # The product before this one is done: its slot is free.
            plgpu.wgmma_wait(1)
            before = lax.rem(done + step + (tiles.slots - 1), jnp.int32(tiles.slots))
            pl.when(step > 0)(lambda: plgpu.barrier_arrive(refs.free.at[before]))

        plgpu.wgmma_wait(0)
        plgpu.barrier_arrive(refs.free.at[lax.rem(done + (steps - 1), jnp.int32(tiles.slots))])
        product: jax.Array = total[...]
        return product

    product = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((WGMMA_ROWS, tiles.columns), jnp.float32))
    # The part of the tile's own rows that this warpgroup has.
    start = tile.first - tile.at - row_group * WGMMA_ROWS
    end = jnp.clip(start + tile.rows, 0, WGMMA_ROWS)
    start = jnp.clip(start, 0, WGMMA_ROWS)
    staged = refs.staged.at[group]
    for column in range(0, tiles.columns, STAGED_COLUMNS):
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        staged[...] = product[:, column : column + STAGED_COLUMNS].astype(staged.dtype)
        plgpu.commit_smem()
        columns = pl.ds(tile.column + column_group * tiles.columns + column, STAGED_COLUMNS)
        store_rows(staged, refs.out, start, end, tile.at + row_group * WGMMA_ROWS, columns)
