"""matmul in Mosaic GPU, for Hopper: rows times a matrix of narrow numbers, which are widened in registers and nowhere else.

What is computed is the transposed product: the matrix is the left operand of wgmma, 64 outputs of it, and the rows of x are its
columns, of which 8 are enough. So a decode step of few rows wastes nothing, and a warpgroup's own registers are where its numbers
are widened. One warpgroup loads x and the matrix by TMA into a ring, 128 inputs at a time and ahead into the next piece; the
others multiply, 64 outputs each, and sum in float32. A matrix of few outputs is cut along its inputs, too, so that all
multiprocessors have something to read; XLA adds these sums, in the same order every time.
"""

from __future__ import annotations

from functools import partial
from math import gcd
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.matmul.matrix import Matrix
from pallas_kernels.matmul.mosaic_gpu_numbers import Numbers
from pallas_kernels.matmul.mosaic_gpu_tiles import WGMMA_OUTPUTS, Tiles, choose_tiles
from pallas_kernels.matmul.problem import MatmulProblem
from pallas_kernels.matmul.words import BLOCK_INPUTS
from pallas_kernels.quantization import outputs_of

# Registers of a thread: three warpgroups share the 65536 of a multiprocessor, and loading needs few.
LOADING_REGISTERS, COMPUTING_REGISTERS = 40, 232
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
    factors = None if numbers.group is None else plgpu.SMEM((tiles.slots, numbers.factors, tiles.outputs), jnp.float32)
    loads = 1 + tiles.groups + (factors is not None) + numbers.zeros
    return [
        mosaic.tiled((tiles.slots, tiles.rows, BLOCK_INPUTS), dtype, numbers.part_inputs * jnp.dtype(dtype).itemsize),
        mosaic.tiled((tiles.slots, tiles.groups, WGMMA_OUTPUTS, numbers.part_inputs), jnp.uint16),
        factors,
        factors if numbers.zeros else None,
        mosaic.tiled((tiles.groups, tiles.staged, WGMMA_OUTPUTS), result_dtype),
        plgpu.Barrier(num_arrivals=loads, num_barriers=tiles.slots),
        plgpu.Barrier(num_arrivals=tiles.groups, num_barriers=tiles.slots),
    ]


class _Refs(NamedTuple):
    """Memory of the kernel, in the order of its arguments: inputs, outputs, scratch.

    Groups of inputs have rings of scales and perhaps zeros, else there is neither.
    """

    x: Any
    values: Any
    scales: Any
    zeros: Any
    out: Any
    row_ring: Any
    word_ring: Any
    scale_ring: Any
    zero_ring: Any
    staged: Any
    loaded: Any
    free: Any


class _Piece(NamedTuple):
    """What a thread block works on, int32 scalars: its share of the inputs, its first row and output, and where that one goes."""

    split: jax.Array
    row: jax.Array
    output: jax.Array
    column: jax.Array


def _kernel(*arguments: Any, numbers: Numbers, tiles: Tiles, interpreted: bool) -> None:
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
            total = _sum(refs, group, turn * tiles.steps, numbers, tiles, interpreted)
            piece = _piece(refs, program + turn * tiles.programs, tiles)
            if numbers.group is None:
                total = _scaled(refs, total, piece, group)
            _store(refs, total, piece, group, tiles)

        plgpu.wait_smem_to_gmem(0)

    @pl.when(group == tiles.groups)
    def _load() -> None:
        plgpu.set_max_registers(LOADING_REGISTERS, action="decrease")

        @pl.loop(0, mine)
        def _each(turn: jax.Array) -> None:
            _load_piece(refs, _piece(refs, program + turn * tiles.programs, tiles), turn * tiles.steps, numbers, tiles)

        # A barrier may not be left while it has completed a phase that nobody awaited.
        for slot in range(tiles.slots):
            pl.when(slot < mine * tiles.steps)(partial(plgpu.barrier_wait, refs.free.at[slot]))


def _piece(refs: _Refs, number: jax.Array, tiles: Tiles) -> _Piece:
    """Piece `number`: of each tile of outputs all shares of the inputs, of each share all rows, which read the same numbers.

    Where tiles do not divide the outputs, the last one begins earlier: its first sums are others' again, and are taken out later.
    """
    row, rest = lax.rem(number, jnp.int32(tiles.row_tiles)), lax.div(number, jnp.int32(tiles.row_tiles))
    split, tile = lax.rem(rest, jnp.int32(tiles.splits)), lax.div(rest, jnp.int32(tiles.splits))
    column = output = tile * tiles.outputs
    if (outputs := refs.values.shape[1]) % tiles.outputs:
        output = jnp.minimum(column, outputs - tiles.outputs)
    return _Piece(split, row * tiles.rows, output, column)


def _outputs(refs: _Refs, piece: _Piece, group: jax.Array | int, count: int = WGMMA_OUTPUTS) -> Any:
    """The outputs of a warpgroup in a piece, or more from there on."""
    first = piece.output + group * WGMMA_OUTPUTS
    return pl.ds(pl.multiple_of(first, gcd(refs.values.shape[1], WGMMA_OUTPUTS)), count)


def _load_piece(refs: _Refs, piece: _Piece, done: jax.Array, numbers: Numbers, tiles: Tiles) -> None:
    """Load a piece's rows and numbers, `done` steps of other pieces having gone through the ring before."""

    @pl.loop(0, tiles.steps)
    def _step(step: jax.Array) -> None:
        slot = lax.rem(done + step, jnp.int32(tiles.slots))
        pl.when(done + step >= tiles.slots)(lambda: plgpu.barrier_wait(refs.free.at[slot]))
        block = piece.split * tiles.steps + step
        for i in range(tiles.groups):
            plgpu.copy_gmem_to_smem(
                refs.values.at[block, _outputs(refs, piece, i)], refs.word_ring.at[slot, i], refs.loaded.at[slot]
            )
        rows = pl.ds(pl.multiple_of(piece.row, mosaic.ROW_TILE), tiles.rows)
        inputs = pl.ds(pl.multiple_of(block * BLOCK_INPUTS, BLOCK_INPUTS), BLOCK_INPUTS)
        plgpu.copy_gmem_to_smem(refs.x.at[rows, inputs], refs.row_ring.at[slot], refs.loaded.at[slot])
        if numbers.group is not None:
            factors = pl.ds(lax.div(block * BLOCK_INPUTS, jnp.int32(numbers.group)), numbers.factors)
            place = factors, _outputs(refs, piece, 0, tiles.outputs)
            plgpu.copy_gmem_to_smem(refs.scales.at[place], refs.scale_ring.at[slot], refs.loaded.at[slot])
            if numbers.zeros:
                plgpu.copy_gmem_to_smem(refs.zeros.at[place], refs.zero_ring.at[slot], refs.loaded.at[slot])


def _sum(refs: _Refs, group: jax.Array, done: jax.Array, numbers: Numbers, tiles: Tiles, interpreted: bool) -> jax.Array:
    """This warpgroup's sums of a piece, f32 [64, rows]; of groups of inputs each is multiplied by its scales."""
    outputs = pl.ds(pl.multiple_of(group * WGMMA_OUTPUTS, WGMMA_OUTPUTS), WGMMA_OUTPUTS)
    each = numbers.parts // numbers.factors  # parts that share a factor

    def step(number: jax.Array, total: jax.Array) -> jax.Array:
        slot = lax.rem(done + number, jnp.int32(tiles.slots))
        plgpu.barrier_wait(refs.loaded.at[slot])
        words = plgpu.load(refs.word_ring.at[slot, group], layout=plgpu.Layout.WGMMA)
        for factor in range(numbers.factors):
            scales = None if numbers.group is None else _of_outputs(refs.scale_ring.at[slot, factor, outputs])
            zeros = _of_outputs(refs.zero_ring.at[slot, factor, outputs]) if numbers.zeros else None
            shared = range(factor * each, (factor + 1) * each)
            parts = [numbers.widened(words, part, zeros) for part in shared]
            inputs = pl.ds(shared.start * numbers.part_inputs, each * numbers.part_inputs)
            part_sum = _product(parts, refs.row_ring.at[slot, :, inputs], interpreted)
            total += part_sum if scales is None else part_sum * lax.broadcast_in_dim(scales, part_sum.shape, [0])
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
        return rows.at[:, pl.ds(part * parts[0].shape[1], parts[0].shape[1])]

    if interpreted:
        wide = [(left.astype(jnp.float32), of_part(part)[...].astype(jnp.float32)) for part, left in enumerate(parts)]
        plgpu.commit_smem()  # wgmma reads as TMA does, which may overwrite what it has read; a warpgroup's own loads it may not
        return sum((jnp.dot(left, right.T) for left, right in wide), jnp.float32(0))

    def multiply(accumulator: Any) -> jax.Array:
        for part, left in enumerate(parts):
            plgpu.wgmma(accumulator, left, of_part(part).transpose((1, 0)))
        result: jax.Array = accumulator[...]
        return result

    product: jax.Array = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((WGMMA_OUTPUTS, rows.shape[0]), jnp.float32))
    return product


def _of_outputs(memory: Any) -> jax.Array:
    """Load something of 64 outputs, as rows of a sum."""
    loaded: jax.Array = plgpu.load(memory, layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)
    return loaded


def _scaled(refs: _Refs, total: jax.Array, piece: _Piece, group: jax.Array) -> jax.Array:
    """A warpgroup's sums times the scale of each of its outputs."""
    return total * lax.broadcast_in_dim(_of_outputs(refs.scales.at[0, _outputs(refs, piece, group)]), total.shape, [0])


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
