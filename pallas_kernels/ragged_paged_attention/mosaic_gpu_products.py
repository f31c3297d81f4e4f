"""Products of wgmma in registers, and what stands for them where kernels are interpreted.

A sum is added to where it lies: as long as the product of a tile had registers of its own, beside the sum, they spilled. jax's
interpreter knows neither an accumulator that begins with numbers nor a left operand in registers; there the same numbers come
from an ordinary dot. What it cannot see, that nothing is overwritten while a product reads it, is checked in the compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

# Wider left operands are multiplied so many columns at a time, in a loop: of one long product the compiler keeps the addresses
# of all steps in registers.
PART_COLUMNS = 64
WHOLE_COLUMNS = 128

R = TypeVar("R")


def product(left: Any, right: Any) -> jax.Array:
    """Return left @ right, f32 [64, N], of references to shared memory [64, M] and [M, N]."""

    def multiply(accumulator: Any) -> jax.Array:
        _start(accumulator, left, right)
        result: jax.Array = accumulator[...]
        return result

    whole: jax.Array = pl.run_scoped(multiply, _accumulator(left, right))
    return whole


def add_product(total: jax.Array, left: Any, right: Any, *, interpreted: bool) -> jax.Array:
    """Return total + left @ right.

    Args:
        total: f32 [64, N].
        left: [64, M], an array or a reference to shared memory.
        right: reference to [M, N].
        interpreted: whether the kernel is.
    """
    if interpreted:
        return total + _dot(left, right)

    def add(accumulator: Any) -> jax.Array:
        accumulator[...] = total
        plgpu.wgmma(accumulator, left, right)
        result: jax.Array = accumulator[...]
        return result

    summed: jax.Array = pl.run_scoped(add, _accumulator(left, right))
    return summed


def add_beside_scores(
    total: jax.Array, weights: jax.Array, values: Any, q: Any, keys: Any, use: Callable[[jax.Array], R], *, interpreted: bool
) -> tuple[jax.Array, R]:
    """Return total + weights @ values, and use(q @ keys), which is computed while the sum is.

    Both products are started at once, scores first: a softmax of these and the sum share the time (FlashAttention-3, Shah et
    al. 2024).

    Args:
        total: f32 [64, N].
        weights: [64, M].
        values: reference to [M, N].
        q, keys: references to [64, D] and [D, M].
        use: called once; what it is given nobody reads any more.
        interpreted: whether the kernel is.
    """
    if interpreted:
        return total + _dot(weights, values), use(product(q, keys))

    def both(scores: Any, summed: Any) -> tuple[jax.Array, R]:
        summed[...] = total
        _start(scores, q, keys)
        plgpu.wgmma(summed, weights, values)
        used = use(plgpu.wgmma_accumulator_load(scores, wait_n=1))
        result: jax.Array = summed[...]
        return result, used

    found: tuple[jax.Array, R] = pl.run_scoped(both, _accumulator(q, keys), _accumulator(weights, values))
    return found


def _start(accumulator: Any, left: Any, right: Any) -> None:
    columns = left.shape[1]
    parts = columns // PART_COLUMNS if columns > WHOLE_COLUMNS else 0

    def multiply(part: Any) -> None:
        plgpu.wgmma(accumulator, left.at[:, part], right.at[part])

    if parts:
        pl.loop(0, parts)(lambda number: multiply(pl.ds(number * PART_COLUMNS, PART_COLUMNS)))
    if parts * PART_COLUMNS < columns:
        multiply(pl.ds(parts * PART_COLUMNS, columns - parts * PART_COLUMNS))


def _accumulator(left: Any, right: Any) -> Any:
    return plgpu.WGMMAAccumulatorRef((left.shape[0], right.shape[1]), jnp.float32)


def _dot(left: Any, right: Any) -> jax.Array:
    numbers = left[...].astype(jnp.float32), right[...].astype(jnp.float32)
    plgpu.commit_smem()  # wgmma reads as TMA does, which may overwrite what it has read; a warpgroup's own loads it may not
    return jnp.dot(*numbers)
