"""One step of a product with narrow numbers on Hopper, 128 inputs: loaded by one warpgroup, widened and summed by the others.

`matmul` takes all steps of one matrix, `grouped_matmul` those of its groups' matrices, which lie one behind the other.
"""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic
from pallas_kernels.matmul.mosaic_gpu_numbers import Numbers
from pallas_kernels.matmul.mosaic_gpu_tiles import WGMMA_OUTPUTS
from pallas_kernels.matmul.words import BLOCK_INPUTS


class Operands(NamedTuple):
    """Global memory: x [N, I], words [blocks, O, words of a block], scales and zeros [groups of inputs, O]; None for no zeros."""

    x: Any
    values: Any
    scales: Any
    zeros: Any


class Rings(NamedTuple):
    """Shared memory of the steps on their way, a slot each; groups of inputs have rings of scales and perhaps zeros."""

    rows: Any
    words: Any
    scales: Any
    zeros: Any
    loaded: Any
    free: Any


class Place(NamedTuple):
    """Where a step's numbers begin, int32 scalars: its block of words and group of inputs; row and input of x; first output."""

    block: jax.Array
    factor: jax.Array
    row: jax.Array
    inputs: jax.Array
    output: jax.Array


def describe_rings(numbers: Numbers, slots: int, rows: int, groups: int, dtype: Any) -> list[Any]:
    """Describe the shared memory of so many slots, rows of x, and warpgroups that multiply; in the order of `Rings`."""
    factors = None if numbers.group is None else plgpu.SMEM((slots, numbers.factors, groups * WGMMA_OUTPUTS), jnp.float32)
    loads = 1 + groups + (factors is not None) + numbers.zeros
    return [
        mosaic.tiled((slots, rows, BLOCK_INPUTS), dtype, numbers.part_inputs * jnp.dtype(dtype).itemsize),
        mosaic.tiled((slots, groups, WGMMA_OUTPUTS, numbers.part_inputs), jnp.uint16),
        factors,
        factors if numbers.zeros else None,
        plgpu.Barrier(num_arrivals=loads, num_barriers=slots),
        plgpu.Barrier(num_arrivals=groups, num_barriers=slots),
    ]


def load_step(operands: Operands, rings: Rings, place: Place, number: jax.Array, numbers: Numbers) -> None:
    """Load what is multiplied in step `number` of all that a thread block takes, as soon as there is a slot for it."""
    slots, groups, rows = rings.words.shape[0], rings.words.shape[1], rings.rows.shape[1]
    slot = lax.rem(number, jnp.int32(slots))
    loaded = rings.loaded.at[slot]
    pl.when(number >= slots)(lambda: plgpu.barrier_wait(rings.free.at[slot]))
    for i in range(groups):
        outputs = outputs_from(place.output + i * WGMMA_OUTPUTS, operands)
        plgpu.copy_gmem_to_smem(operands.values.at[place.block, outputs], rings.words.at[slot, i], loaded)
    at = pl.ds(pl.multiple_of(place.row, mosaic.ROW_TILE), rows)
    inputs = pl.ds(pl.multiple_of(place.inputs, BLOCK_INPUTS), BLOCK_INPUTS)
    plgpu.copy_gmem_to_smem(operands.x.at[at, inputs], rings.rows.at[slot], loaded)
    if numbers.group is not None:
        shared = pl.ds(place.factor, numbers.factors), outputs_from(place.output, operands, groups * WGMMA_OUTPUTS)
        plgpu.copy_gmem_to_smem(operands.scales.at[shared], rings.scales.at[slot], loaded)
        if numbers.zeros:
            plgpu.copy_gmem_to_smem(operands.zeros.at[shared], rings.zeros.at[slot], loaded)


def outputs_from(first: jax.Array, operands: Operands, count: int = WGMMA_OUTPUTS) -> Any:
    """So many outputs from one on at which a tile begins, which may be no multiple of a tile's where none divides the outputs."""
    return pl.ds(pl.multiple_of(first, gcd(operands.values.shape[1], WGMMA_OUTPUTS)), count)


def sum_steps(
    rings: Rings, group: jax.Array, done: jax.Array, steps: int, numbers: Numbers, *, missing: int = 0, interpreted: bool
) -> jax.Array:
    """A warpgroup's sums of some steps, f32 [64, rows]; of groups of inputs each is multiplied by its scales.

    Args:
        rings: where they come.
        group: which warpgroup.
        done: steps before them.
        steps: how many.
        numbers: of the matrix.
        missing: factors that the last step's block lacks, where numbers end before it does: the others are then loaded behind
            as many of the block before, and rows of x are 0 for what is missing.
        interpreted: whether jax's interpreter runs the kernel.
    """
    outputs = pl.ds(pl.multiple_of(group * WGMMA_OUTPUTS, WGMMA_OUTPUTS), WGMMA_OUTPUTS)
    each = numbers.parts // numbers.factors  # parts that share a factor

    def step(number: jax.Array, total: jax.Array) -> jax.Array:
        slot = lax.rem(done + number, jnp.int32(rings.words.shape[0]))
        plgpu.barrier_wait(rings.loaded.at[slot])
        words = plgpu.load(rings.words.at[slot, group], layout=plgpu.Layout.WGMMA)
        moved = jnp.where(number == steps - 1, missing, 0) if missing else 0
        for factor in range(numbers.factors):
            place = jnp.minimum(factor + moved, numbers.factors - 1) if missing else factor
            scales = None if numbers.group is None else of_outputs(rings.scales.at[slot, place, outputs])
            zeros = of_outputs(rings.zeros.at[slot, place, outputs]) if numbers.zeros else None
            shared = range(factor * each, (factor + 1) * each)
            parts = [numbers.widened(words, part, zeros) for part in shared]
            inputs = pl.ds(shared.start * numbers.part_inputs, each * numbers.part_inputs)
            part_sum = _product(parts, rings.rows.at[slot, :, inputs], interpreted)
            total += part_sum if scales is None else scaled(part_sum, scales)
        plgpu.barrier_arrive(rings.free.at[slot])
        return total

    nothing = jnp.zeros((WGMMA_OUTPUTS, rings.rows.shape[1]), jnp.float32)
    total: jax.Array = lax.fori_loop(0, steps, step, plgpu.layout_cast(nothing, plgpu.Layout.WGMMA))
    return total


def of_outputs(memory: Any) -> jax.Array:
    """Load something of 64 outputs, which are rows of a sum."""
    loaded: jax.Array = plgpu.load(memory, layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)
    return loaded


def scaled(total: jax.Array, scales: jax.Array) -> jax.Array:
    """A warpgroup's sums times the scale of each of its 64 outputs."""
    return total * lax.broadcast_in_dim(scales, total.shape, [0])


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
