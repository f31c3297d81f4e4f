"""grouped_matmul in Mosaic GPU over narrow numbers in words, for Hopper: the products of `matmul`'s kernel, group by group.

A tile has rows of one group and some outputs, and takes its group's matrix 128 inputs at a time (matmul/mosaic_gpu_steps.py): 64
outputs are the rows of wgmma's left operand, which comes from registers, where numbers are widened; rows of x are its columns, of
which 8 are enough. So a group of few rows wastes less than where rows of x are wgmma's. Tiles of rows are listed and stored as
those of 16 bits are (mosaic_gpu_rows.py).
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
from pallas_kernels.grouped_matmul.mosaic_gpu_words_tiles import WordTiles, choose_tiles
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.matmul import Matrix
from pallas_kernels.matmul.mosaic_gpu import INTERPRETED_PROGRAMS, LOADING_REGISTERS
from pallas_kernels.matmul.mosaic_gpu_numbers import Numbers
from pallas_kernels.matmul.mosaic_gpu_steps import (
    Operands,
    Place,
    Rings,
    describe_rings,
    load_step,
    of_outputs,
    scaled,
    sum_steps,
)
from pallas_kernels.matmul.mosaic_gpu_tiles import WGMMA_OUTPUTS
from pallas_kernels.matmul.words import BLOCK_INPUTS


def multiply_words(
    x: jax.Array, weights: Matrix, group_sizes: jax.Array, *, dtype: jnp.dtype, expected_rows: int, interpret: bool
) -> jax.Array:
    """grouped_matmul by a stack of matrices in words; see api.py. With `interpret` the kernel is interpreted, on CPUs."""
    problem, numbers = GroupedProblem.of(x, weights, dtype, expected_rows), Numbers.of(weights.scheme)
    tiles = choose_tiles(problem, numbers, INTERPRETED_PROGRAMS) if interpret else choose_tiles(problem, numbers)
    # The matrices one behind the other: blocks of words, and groups of inputs.
    values = weights.values.reshape(-1, *weights.values.shape[2:])
    scales = tuple(part.reshape(-1, problem.outputs) for part in jax.tree.leaves(weights.scales))
    product: jax.Array = _multiply(x, values, scales, group_sizes, dtype=dtype, numbers=numbers, tiles=tiles, interpret=interpret)
    return product


# Jitted, so that all layers of a model share a trace and a kernel.
@partial(jax.jit, static_argnames=("dtype", "numbers", "tiles", "interpret"))
def _multiply(
    x: jax.Array,
    values: jax.Array,
    scales: tuple[jax.Array, ...],
    group_sizes: jax.Array,
    *,
    dtype: jnp.dtype,
    numbers: Numbers,
    tiles: WordTiles,
    interpret: bool,
) -> jax.Array:
    rows, outputs = x.shape[0], values.shape[1]
    padded = max(tiles.rows, -(-rows // mosaic.ROW_TILE) * mosaic.ROW_TILE), tiles.steps * BLOCK_INPUTS
    if padded != x.shape:
        x = jnp.pad(x, [(0, wanted - size) for wanted, size in zip(padded, x.shape, strict=True)])
    staged = plgpu.SMEM((tiles.groups, tiles.staged, WGMMA_OUTPUTS), dtype)
    run = plgpu.kernel(
        partial(_kernel, numbers=numbers, tiles=tiles, interpreted=interpret),
        out_type=jax.ShapeDtypeStruct((x.shape[0], outputs), dtype),
        grid=(tiles.programs,),
        grid_names=("program",),
        num_threads=tiles.groups + 1,
        thread_name="group",
        scratch_types=[staged, *describe_rings(numbers, tiles.slots, tiles.rows, tiles.groups, x.dtype)],
        kernel_name="quantized_grouped_matmul",
        interpret=mosaic.interpreter() if interpret else None,
    )
    listed = list_tiles(group_sizes, x.shape[0], tiles.rows)
    out = run(x, values, scales[0], scales[1] if numbers.zeros else None, *listed)[:rows]
    owned = jnp.arange(rows, dtype=jnp.int32) < jnp.sum(group_sizes)
    return jnp.where(owned[:, None], out, jnp.zeros((), dtype))


class _Refs(NamedTuple):
    """Memory of the kernel: inputs, outputs, scratch."""

    operands: Operands
    group: Any
    at: Any
    first: Any
    rows: Any
    row_tiles: Any
    out: Any
    staged: Any
    rings: Rings

    @classmethod
    def of(cls, *arguments: Any) -> _Refs:
        """Of the kernel's arguments."""
        x, values, scales, zeros, group, at, first, rows, row_tiles, out, staged, *rings = arguments
        return cls(Operands(x, values, scales, zeros), group, at, first, rows, row_tiles, out, staged, Rings(*rings))


class _Tile(NamedTuple):
    """What a thread block works on: an entry of `RowTiles`, int32 scalars, and the first output."""

    group: jax.Array
    at: jax.Array
    first: jax.Array
    rows: jax.Array
    output: jax.Array


def _kernel(*arguments: Any, numbers: Numbers, tiles: WordTiles, interpreted: bool) -> None:
    refs = _Refs.of(*arguments)
    program, group = lax.axis_index("program"), lax.axis_index("group")
    registers = mosaic.divide_registers(tiles.groups, LOADING_REGISTERS)
    columns = refs.out.shape[1] // tiles.outputs
    # This block's tiles: program, program + programs, ...
    mine = lax.div(refs.row_tiles[0] * columns - program + (tiles.programs - 1), jnp.int32(tiles.programs))

    @pl.when(group < tiles.groups)
    def _compute() -> None:
        mosaic.set_registers(registers, computing=True)

        @pl.loop(0, mine)
        def _each(turn: jax.Array) -> None:
            total = sum_steps(
                refs.rings, group, turn * tiles.steps, tiles.steps, numbers, missing=tiles.missing, interpreted=interpreted
            )
            tile = _tile(refs, tiles, program + turn * tiles.programs)
            first = pl.multiple_of(tile.output + group * WGMMA_OUTPUTS, WGMMA_OUTPUTS)
            if numbers.group is None:
                total = scaled(total, of_outputs(refs.operands.scales.at[tile.group, pl.ds(first, WGMMA_OUTPUTS)]))
            _store(refs, total, tile, group, tiles)

        plgpu.wait_smem_to_gmem(0)

    @pl.when(group == tiles.groups)
    def _load() -> None:
        mosaic.set_registers(registers, computing=False)

        @pl.loop(0, mine)
        def _each(turn: jax.Array) -> None:
            _load_tile(refs, _tile(refs, tiles, program + turn * tiles.programs), turn * tiles.steps, numbers, tiles)

        # A barrier may not be left while it has completed a phase that nobody awaited.
        for slot in range(tiles.slots):
            pl.when(slot < mine * tiles.steps)(partial(plgpu.barrier_wait, refs.rings.free.at[slot]))


def _tile(refs: _Refs, tiles: WordTiles, number: jax.Array) -> _Tile:
    """Tile `number`: panels of outputs, in each all row tiles, of each the panel's outputs."""
    in_panel = refs.row_tiles[0] * tiles.panel
    panel, within = lax.div(number, in_panel), lax.rem(number, in_panel)
    row, column = lax.div(within, jnp.int32(tiles.panel)), lax.rem(within, jnp.int32(tiles.panel))
    return _Tile(refs.group[row], refs.at[row], refs.first[row], refs.rows[row], (panel * tiles.panel + column) * tiles.outputs)


def _load_tile(refs: _Refs, tile: _Tile, done: jax.Array, numbers: Numbers, tiles: WordTiles) -> None:
    """Load a tile's rows and numbers, `done` steps of other tiles having gone through the ring before."""

    @pl.loop(0, tiles.steps)
    def _step(step: jax.Array) -> None:
        factor = numbers.groups_before(step * BLOCK_INPUTS)
        if tiles.missing:
            factor = jnp.minimum(factor, tiles.held - numbers.factors)
        inputs = step * BLOCK_INPUTS
        place = Place(tile.group * tiles.steps + step, tile.group * tiles.held + factor, tile.at, inputs, tile.output)
        load_step(refs.operands, refs.rings, place, done + step, numbers)


def _store(refs: _Refs, total: jax.Array, tile: _Tile, group: jax.Array, tiles: WordTiles) -> None:
    """Write those of a warpgroup's sums that are of the tile's own rows, turned around on their way through shared memory."""
    outputs = pl.ds(pl.multiple_of(tile.output + group * WGMMA_OUTPUTS, WGMMA_OUTPUTS), WGMMA_OUTPUTS)
    staged = refs.staged.at[group]
    for row in range(0, tiles.rows, tiles.staged):
        start = tile.first - tile.at - row
        end = jnp.clip(start + tile.rows, 0, tiles.staged)
        start = jnp.clip(start, 0, tiles.staged)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        part = total[:, row : row + tiles.staged].astype(staged.dtype)
        staged.transpose((1, 0))[...] = plgpu.layout_cast(part, plgpu.Layout.WGMMA_TRANSPOSED)
        plgpu.commit_smem()
        store_rows(staged, refs.out, start, end, tile.at + row, outputs)
