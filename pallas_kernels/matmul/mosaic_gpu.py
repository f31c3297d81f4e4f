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
from pallas_kernels.matmul import mosaic_gpu_numbers as numbers
from pallas_kernels.matmul.matrix import Matrix
from pallas_kernels.matmul.mosaic_gpu_tiles import WGMMA_OUTPUTS, Tiles, choose_tiles
from pallas_kernels.matmul.problem import MatmulProblem
from pallas_kernels.matmul.words import BLOCK_INPUTS
from pallas_kernels.quantization import outputs_of

# Registers of a thread: three warpgroups share the 65536 of a multiprocessor, and loading needs few.
LOADING_REGISTERS, COMPUTING_REGISTERS = 40, 232
INTERPRETED_PROGRAMS = 2
BITS = 8
PARTS = 2  # of a block of 128 inputs
PART_INPUTS = BLOCK_INPUTS // PARTS
BLOCK_WORDS = BLOCK_INPUTS // PARTS


def matmul(x: jax.Array, matrix: Matrix, summed: jnp.dtype | None = None, *, interpret: bool = False) -> jax.Array:
    """See api.py; scales multiply before a sum is rounded. With `interpret` the kernel is interpreted, on CPUs."""
    problem = MatmulProblem.of(x, matrix)
    tiles = choose_tiles(problem, BITS, INTERPRETED_PROGRAMS) if interpret else choose_tiles(problem, BITS)
    y: jax.Array = _multiply(
        x.reshape(problem.rows, -1), matrix.values, matrix.scales.reshape(-1), dtype=summed, tiles=tiles, interpret=interpret
    )
    if matrix.used_rows is not None:
        y = jnp.where((jnp.arange(problem.rows, dtype=jnp.int32) < matrix.used_rows)[:, None], y, 0.0)
    return y.reshape(problem.rows, *outputs_of(matrix.shape, matrix.layout.inputs))


@partial(jax.jit, static_argnames=("dtype", "tiles", "interpret"))  # so that all layers of a model share a trace and a kernel
def _multiply(
    x: jax.Array, values: jax.Array, scales: jax.Array, *, dtype: jnp.dtype | None, tiles: Tiles, interpret: bool
) -> jax.Array:
    rows, outputs = x.shape[0], values.shape[0]
    if padding := tiles.rows * tiles.row_tiles - rows:
        x = jnp.pad(x, ((0, padding), (0, 0)))
    rounded = jnp.dtype(jnp.float32) if dtype is None else dtype
    result = rounded if tiles.splits == 1 else jnp.dtype(jnp.float32)
    run = plgpu.kernel(
        partial(_kernel, tiles=tiles, interpreted=interpret),
        out_type=jax.ShapeDtypeStruct((tiles.splits, x.shape[0], outputs), result),
        grid=(tiles.programs,),
        grid_names=("program",),
        num_threads=tiles.groups + 1,
        thread_name="group",
        scratch_types=_scratch(tiles, x.dtype, result),
        kernel_name="quantized_matmul",
        interpret=mosaic.interpreter() if interpret else None,
    )
    sums = run(x, values, scales)
    y: jax.Array = sums[0] if tiles.splits == 1 else sums.sum(axis=0)
    return y[:rows].astype(rounded).astype(jnp.float32)


def _scratch(tiles: Tiles, dtype: Any, result_dtype: Any) -> list[Any]:
    """Describe the shared memory, in the order of `_Refs`."""
    return [
        mosaic.tiled((tiles.slots, tiles.rows, BLOCK_INPUTS), dtype),
        mosaic.tiled((tiles.slots, tiles.groups, WGMMA_OUTPUTS, BLOCK_WORDS), jnp.uint16),
        mosaic.tiled((tiles.groups, tiles.staged, WGMMA_OUTPUTS), result_dtype),
        plgpu.Barrier(num_arrivals=1 + tiles.groups, num_barriers=tiles.slots),
        plgpu.Barrier(num_arrivals=tiles.groups, num_barriers=tiles.slots),
    ]


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, outputs, scratch."""

    x: Any
    values: Any
    scales: Any
    out: Any
    row_ring: Any
    word_ring: Any
    staged: Any
    loaded: Any
    free: Any


class _Piece(NamedTuple):
    """What a thread block works on, int32 scalars: its share of the inputs, its first row and its first output."""

    split: jax.Array
    row: jax.Array
    output: jax.Array


def _kernel(*arguments: Any, tiles: Tiles, interpreted: bool) -> None:
    refs = _Refs(*arguments)
    program, group = lax.axis_index("program"), lax.axis_index("group")
    pieces = refs.out.shape[2] // tiles.outputs * tiles.row_tiles * tiles.splits
    # This block's pieces: program, program + programs, ...
    mine = lax.div(pieces - program + (tiles.programs - 1), jnp.int32(tiles.programs))

    @pl.when(group < tiles.groups)
    def _compute() -> None:
        plgpu.set_max_registers(COMPUTING_REGISTERS, action="increase")

        @pl.loop(0, mine)
        def _each(turn: jax.Array) -> None:
            total = _sum(refs, group, turn * tiles.steps, tiles, interpreted)
            _store(refs, total, _piece(program + turn * tiles.programs, tiles), group, tiles)

        plgpu.wait_smem_to_gmem(0)

    @pl.when(group == tiles.groups)
    def _load() -> None:
        plgpu.set_max_registers(LOADING_REGISTERS, action="decrease")

        @pl.loop(0, mine)
        def _each(turn: jax.Array) -> None:
            _load_piece(refs, _piece(program + turn * tiles.programs, tiles), turn * tiles.steps, tiles)

        # A barrier may not be left while it has completed a phase that nobody awaited.
        for slot in range(tiles.slots):
            pl.when(slot < mine * tiles.steps)(partial(plgpu.barrier_wait, refs.free.at[slot]))


def _piece(number: jax.Array, tiles: Tiles) -> _Piece:
    """Piece `number`: of each tile of outputs all shares of the inputs, of each share all rows, which read the same numbers."""
    row, rest = lax.rem(number, jnp.int32(tiles.row_tiles)), lax.div(number, jnp.int32(tiles.row_tiles))
    split, tile = lax.rem(rest, jnp.int32(tiles.splits)), lax.div(rest, jnp.int32(tiles.splits))
    return _Piece(split, row * tiles.rows, tile * tiles.outputs)


def _load_piece(refs: _Refs, piece: _Piece, done: jax.Array, tiles: Tiles) -> None:
    """Load a piece's rows and numbers, `done` steps of other pieces having gone through the ring before."""

    @pl.loop(0, tiles.steps)
    def _step(step: jax.Array) -> None:
        slot = lax.rem(done + step, jnp.int32(tiles.slots))
        pl.when(done + step >= tiles.slots)(lambda: plgpu.barrier_wait(refs.free.at[slot]))
        block = piece.split * tiles.steps + step
        words = pl.ds(pl.multiple_of(block * BLOCK_WORDS, BLOCK_WORDS), BLOCK_WORDS)
        for i in range(tiles.groups):
            outputs = pl.ds(pl.multiple_of(piece.output + i * WGMMA_OUTPUTS, WGMMA_OUTPUTS), WGMMA_OUTPUTS)
            plgpu.copy_gmem_to_smem(refs.values.at[outputs, words], refs.word_ring.at[slot, i], refs.loaded.at[slot])
        rows = pl.ds(pl.multiple_of(piece.row, mosaic.ROW_TILE), tiles.rows)
        inputs = pl.ds(pl.multiple_of(block * BLOCK_INPUTS, BLOCK_INPUTS), BLOCK_INPUTS)
        plgpu.copy_gmem_to_smem(refs.x.at[rows, inputs], refs.row_ring.at[slot], refs.loaded.at[slot])


def _sum(refs: _Refs, group: jax.Array, done: jax.Array, tiles: Tiles, interpreted: bool) -> jax.Array:
    """This warpgroup's sums of a piece, f32 [64, rows], before any scale."""

    def step(number: jax.Array, total: jax.Array) -> jax.Array:
        slot = lax.rem(done + number, jnp.int32(tiles.slots))
        plgpu.barrier_wait(refs.loaded.at[slot])
        words = plgpu.load(refs.word_ring.at[slot, group], layout=plgpu.Layout.WGMMA)
        parts = [numbers.int8(words, part) for part in range(PARTS)]
        total += _product(parts, refs.row_ring.at[slot], interpreted)
        plgpu.barrier_arrive(refs.free.at[slot])
        return total

    nothing = jnp.zeros((WGMMA_OUTPUTS, tiles.rows), jnp.float32)
    total: jax.Array = lax.fori_loop(0, tiles.steps, step, plgpu.layout_cast(nothing, plgpu.Layout.WGMMA))
    return total


def _product(parts: list[jax.Array], rows: Any, interpreted: bool) -> jax.Array:
    """The product of numbers in registers, [64, inputs of a part] each, and rows of x in shared memory: f32 [64, rows].

    jax's interpreter knows no left operand in registers: there the same numbers come from an ordinary dot.
    """

    def of_part(part: int) -> Any:
        return rows.at[:, part * PART_INPUTS : (part + 1) * PART_INPUTS]

    if interpreted:
        wide = [(numbers.astype(jnp.float32), of_part(part)[...].astype(jnp.float32)) for part, numbers in enumerate(parts)]
        plgpu.commit_smem()  # wgmma reads as TMA does, which may overwrite what it has read; a warpgroup's own loads it may not
        return sum((jnp.dot(left, right.T) for left, right in wide), jnp.float32(0))

    def multiply(accumulator: Any) -> jax.Array:
        for part, left in enumerate(parts):
            plgpu.wgmma(accumulator, left, of_part(part).transpose((1, 0)))
        result: jax.Array = accumulator[...]
        return result

    product: jax.Array = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((WGMMA_OUTPUTS, rows.shape[0]), jnp.float32))
    return product


def _store(refs: _Refs, total: jax.Array, piece: _Piece, group: jax.Array, tiles: Tiles) -> None:
    """Multiply a warpgroup's sums by their outputs' scales and write them, turned around on their way through shared memory."""
    first = pl.multiple_of(piece.output + group * WGMMA_OUTPUTS, WGMMA_OUTPUTS)
    outputs = pl.ds(first, WGMMA_OUTPUTS)
    scales = plgpu.load(refs.scales.at[outputs], layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)
    total *= lax.broadcast_in_dim(scales, total.shape, [0])
    staged = refs.staged.at[group]
    for row in range(0, tiles.rows, tiles.staged):
        part = total[:, row : row + tiles.staged].astype(staged.dtype)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        staged.transpose((1, 0))[...] = plgpu.layout_cast(part, plgpu.Layout.WGMMA_TRANSPOSED)
        plgpu.commit_smem()
        rows = pl.ds(piece.row + row, tiles.staged)
        plgpu.copy_smem_to_gmem(staged, refs.out.at[piece.split, rows, outputs])
