"""matmul in Mosaic GPU, for Hopper: rows times a matrix of narrow numbers, which are widened in registers and nowhere else.

What is computed is the transposed product: the matrix is the left operand of wgmma, 64 outputs of it, and the rows of x are its
columns, of which 8 are enough. So a decode step of few rows wastes nothing, and a warpgroup's own registers are where its numbers
are widened. One warpgroup loads x and the matrix by TMA into a ring, 128 inputs at a time and ahead into the next piece; the
others multiply, 64 outputs each, and sum in float32. A matrix of few outputs is cut along its inputs, too, so that all
multiprocessors have something to read; XLA adds these sums, in the same order every time.
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
from pallas_kernels.matmul.matrix import Matrix
from pallas_kernels.matmul.mosaic_gpu_numbers import Numbers
from pallas_kernels.matmul.mosaic_gpu_steps import (
    Operands,
    Place,
    Rings,
    describe_rings,
    load_step,
    of_outputs,
    outputs_from,
    scaled,
    sum_steps,
)
from pallas_kernels.matmul.mosaic_gpu_tiles import WGMMA_OUTPUTS, Tiles, choose_tiles
from pallas_kernels.matmul.problem import MatmulProblem
from pallas_kernels.matmul.words import BLOCK_INPUTS
from pallas_kernels.quantization import outputs_of

LOADING_REGISTERS = 40  # of a thread that loads
INTERPRETED_PROGRAMS = 2


def matmul(x: jax.Array, matrix: Matrix, summed: jnp.dtype | None = None, *, interpret: bool = False) -> jax.Array:
    """See api.py; scales multiply before a sum is rounded. With `interpret` the kernel is interpreted, on CPUs."""
    problem, numbers = MatmulProblem.of(x, matrix), Numbers.of(matrix.scheme)
    tiles = choose_tiles(problem, numbers, INTERPRETED_PROGRAMS) if interpret else choose_tiles(problem, numbers)
    scales = tuple(part.reshape(-1, problem.outputs) for part in jax.tree.leaves(matrix.scales))
    y: jax.Array = _multiply(
        x.reshape(problem.rows, -1), matrix.values, scales, dtype=summed, numbers=numbers, tiles=tiles, interpret=interpret
    )
    if matrix.used_rows is not None:
        y = jnp.where((jnp.arange(problem.rows, dtype=jnp.int32) < matrix.used_rows)[:, None], y, 0.0)
    return y.reshape(problem.rows, *outputs_of(matrix.shape, matrix.layout.inputs))


# Jitted, so that all layers of a model share a trace and a kernel.
@partial(jax.jit, static_argnames=("dtype", "numbers", "tiles", "interpret"))
def _multiply(
    x: jax.Array,
    values: jax.Array,
    scales: tuple[jax.Array, ...],
    *,
    dtype: jnp.dtype | None,
    numbers: Numbers,
    tiles: Tiles,
    interpret: bool,
) -> jax.Array:
    rows, outputs = x.shape[0], values.shape[1]
    columns = -(-outputs // tiles.outputs) * tiles.outputs
    if padding := tiles.rows * tiles.row_tiles - rows:
        x = jnp.pad(x, ((0, padding), (0, 0)))
    rounded = jnp.dtype(jnp.float32) if dtype is None else dtype
    result = rounded if tiles.splits == 1 else jnp.dtype(jnp.float32)
    run = plgpu.kernel(
        partial(_kernel, numbers=numbers, tiles=tiles, interpreted=interpret),
        out_type=jax.ShapeDtypeStruct((tiles.splits, x.shape[0], columns), result),
        grid=(tiles.programs,),
        grid_names=("program",),
        num_threads=tiles.groups + 1,
        thread_name="group",
        scratch_types=_scratch(numbers, tiles, x.dtype, result),
        kernel_name="quantized_matmul",
        interpret=mosaic.interpreter() if interpret else None,
    )
    sums = run(x, values, scales[0], scales[1] if numbers.zeros else None)
    y: jax.Array = sums[0] if tiles.splits == 1 else sums.sum(axis=0)
    if columns > outputs:
        y = jnp.concatenate([y[:, : columns - tiles.outputs], y[:, 2 * columns - tiles.outputs - outputs :]], axis=1)
    return y[:rows].astype(rounded).astype(jnp.float32)


def _scratch(numbers: Numbers, tiles: Tiles, dtype: Any, result_dtype: Any) -> list[Any]:
    """Describe the shared memory, in the order of `_Refs`."""
    staged = mosaic.tiled((tiles.groups, tiles.staged, WGMMA_OUTPUTS), result_dtype)
    return [staged, *describe_rings(numbers, tiles.slots, tiles.rows, tiles.groups, dtype)]


class _Refs(NamedTuple):
    """Memory of the kernel: inputs, outputs, scratch."""

    operands: Operands
    out: Any
    staged: Any
    rings: Rings

    @classmethod
    def of(cls, *arguments: Any) -> _Refs:
        """Of the kernel's arguments."""
        x, values, scales, zeros, out, staged, *rings = arguments
        return cls(Operands(x, values, scales, zeros), out, staged, Rings(*rings))


class _Piece(NamedTuple):
    """What a thread block works on, int32 scalars: its share of the inputs, its first row and output, and where that one goes."""

    split: jax.Array
    row: jax.Array
    output: jax.Array
    column: jax.Array


def _kernel(*arguments: Any, numbers: Numbers, tiles: Tiles, interpreted: bool) -> None:
    refs = _Refs.of(*arguments)
    program, group = lax.axis_index("program"), lax.axis_index("group")
    registers = mosaic.divide_registers(tiles.groups, LOADING_REGISTERS)
    pieces = refs.out.shape[2] // tiles.outputs * tiles.row_tiles * tiles.splits
    # This block's pieces: program, program + programs, ...
    mine = lax.div(pieces - program + (tiles.programs - 1), jnp.int32(tiles.programs))

    @pl.when(group < tiles.groups)
    def _compute() -> None:
        mosaic.set_registers(registers, computing=True)

        @pl.loop(0, mine)
        def _each(turn: jax.Array) -> None:
            total = sum_steps(refs.rings, group, turn * tiles.steps, tiles.steps, numbers, interpreted=interpreted)
            piece = _piece(refs, program + turn * tiles.programs, tiles)
            if numbers.group is None:
                scales = refs.operands.scales.at[0, outputs_from(piece.output + group * WGMMA_OUTPUTS, refs.operands)]
                total = scaled(total, of_outputs(scales))
            _store(refs, total, piece, group, tiles)

        plgpu.wait_smem_to_gmem(0)

    @pl.when(group == tiles.groups)
    def _load() -> None:
        mosaic.set_registers(registers, computing=False)

        @pl.loop(0, mine)
        def _each(turn: jax.Array) -> None:
            _load_piece(refs, _piece(refs, program + turn * tiles.programs, tiles), turn * tiles.steps, numbers, tiles)

        # A barrier may not be left while it has completed a phase that nobody awaited.
        for slot in range(tiles.slots):
            pl.when(slot < mine * tiles.steps)(partial(plgpu.barrier_wait, refs.rings.free.at[slot]))


def _piece(refs: _Refs, number: jax.Array, tiles: Tiles) -> _Piece:
    """Piece `number`: of each tile of outputs all shares of the inputs, of each share all rows, which read the same numbers.

    Where tiles do not divide the outputs, the last one begins earlier: its first sums are others' again, and are taken out later.
    """
    row, rest = lax.rem(number, jnp.int32(tiles.row_tiles)), lax.div(number, jnp.int32(tiles.row_tiles))
    split, tile = lax.rem(rest, jnp.int32(tiles.splits)), lax.div(rest, jnp.int32(tiles.splits))
    column = output = tile * tiles.outputs
    if (outputs := refs.operands.values.shape[1]) % tiles.outputs:
        output = jnp.minimum(column, outputs - tiles.outputs)
    return _Piece(split, row * tiles.rows, output, column)


def _load_piece(refs: _Refs, piece: _Piece, done: jax.Array, numbers: Numbers, tiles: Tiles) -> None:
    """Load a piece's rows and numbers, `done` steps of other pieces having gone through the ring before."""

    @pl.loop(0, tiles.steps)
    def _step(step: jax.Array) -> None:
        block = piece.split * tiles.steps + step
        place = Place(block, numbers.groups_before(block * BLOCK_INPUTS), piece.row, block * BLOCK_INPUTS, piece.output)
        load_step(refs.operands, refs.rings, place, done + step, numbers)


def _store(refs: _Refs, total: jax.Array, piece: _Piece, group: jax.Array, tiles: Tiles) -> None:
    """Write a warpgroup's sums, turned around on their way through shared memory."""
    columns = pl.ds(pl.multiple_of(piece.column + group * WGMMA_OUTPUTS, WGMMA_OUTPUTS), WGMMA_OUTPUTS)
    staged = refs.staged.at[group]
    for row in range(0, tiles.rows, tiles.staged):
        part = total[:, row : row + tiles.staged].astype(staged.dtype)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        staged.transpose((1, 0))[...] = plgpu.layout_cast(part, plgpu.Layout.WGMMA_TRANSPOSED)
        plgpu.commit_smem()
        rows = pl.ds(piece.row + row, tiles.staged)
        plgpu.copy_smem_to_gmem(staged, refs.out.at[piece.split, rows, columns])
