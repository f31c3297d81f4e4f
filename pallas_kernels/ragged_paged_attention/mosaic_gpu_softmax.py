"""What one warpgroup does with a block of keys, in decode and prefill alike: an online softmax over wgmma tiles.

A tile has 64 rows, pairs of a query and a head, and BLOCK_KEYS keys. Logits are in base 2, which is what the hardware
exponentiates. Weights go through shared memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

BLOCK_KEYS = 64  # the fewest rows that the register layout in which values are cleared allows
WGMMA_ROWS = 64
LOG2_E = math.log2(math.e)
# Scores are masked with this and not with -inf, which cannot be subtracted from itself.
MASKED = -1e30
# Values up to this wide are multiplied at once. Wider ones are in parts of 64 columns: the sum and what is added to it must
# both fit the registers.
WHOLE_COLUMNS = 128


@dataclass(frozen=True)
class Options:
    """Static arguments of the operation; see api.py."""

    scale: float
    window: int | None
    soft_cap: float | None


class Softmax(NamedTuple):
    """The state in registers: weighted values as f32 [64, D'] parts of D, largest logit and sum of weights f32 [64]."""

    values: tuple[jax.Array, ...]
    largest: jax.Array
    total: jax.Array


def parts_of(dim: int) -> list[Any]:
    """Return the columns of each part of D."""
    return _columns(dim, dim if dim <= WHOLE_COLUMNS else 64)


def before_any_key(dim: int) -> Softmax:
    """Return the state to start from."""
    rows = plgpu.Layout.WGMMA.reduce(1)
    values = tuple(
        plgpu.layout_cast(jnp.zeros((WGMMA_ROWS, part.size), jnp.float32), plgpu.Layout.WGMMA) for part in parts_of(dim)
    )
    largest = plgpu.layout_cast(jnp.full((WGMMA_ROWS,), MASKED, jnp.float32), rows)
    return Softmax(values, largest, plgpu.layout_cast(jnp.zeros((WGMMA_ROWS,), jnp.float32), rows))


def logits(q: Any, keys: Any, options: Options, scales: Any) -> jax.Array:
    """Return the logits of a tile, f32 [64, BLOCK_KEYS].

    Args:
        q: reference to [64, D].
        keys: reference to [BLOCK_KEYS, D].
        options: of the operation.
        scales: of a quantized cache, reference to [2, BLOCK_KEYS]: of the keys, and of the values; else None. Those of keys
            multiply the scores, and not the keys; those of keys that are masked may be anything.
    """
    scores = _product(q, keys.transpose((1, 0)))
    if scales is not None:
        scores *= _over_rows(scales.at[0])
    if options.soft_cap is None:
        return scores * (options.scale * LOG2_E)
    # tanh from exp2: the hardware's own is off by 5e-4, which the cap multiplies.
    grown = jnp.exp2(scores * (2.0 * LOG2_E * options.scale / options.soft_cap))
    return (options.soft_cap * LOG2_E) * (1.0 - 2.0 / (grown + 1.0))


def absorb(state: Softmax, logit: jax.Array, weights: Any, scales: Any) -> tuple[Softmax, jax.Array]:
    """Take a tile of logits into the state, but for the values, and leave their weights in shared memory.

    With `scales`, see `logits`, those of the values multiply the weights.

    Returns:
        The state, and the factor f32 [64] that its values are still to be multiplied with: see `add_values`.
    """
    largest = jnp.maximum(state.largest, logit.max(axis=1))
    fade = jnp.exp2(state.largest - largest)
    weight = jnp.exp2(logit - lax.broadcast_in_dim(largest, logit.shape, [0]))
    scaled = weight if scales is None else jnp.where(logit > MASKED, weight * _over_rows(scales.at[1]), 0.0)
    weights[...] = scaled.astype(weights.dtype)
    plgpu.commit_smem()
    return Softmax(state.values, largest, state.total * fade + weight.sum(axis=1)), fade


def add_values(state: Softmax, fade: jax.Array, weights: Any, values: Any) -> Softmax:
    """Multiply the state's values with `fade` and add weights [64, BLOCK_KEYS] @ values [BLOCK_KEYS, D]."""
    # Without the barriers the compiler multiplies all parts before it adds any: their products do not fit the registers.
    summed = tuple(
        lax.optimization_barrier(old * lax.broadcast_in_dim(fade, old.shape, [0]) + _product(weights, values.at[:, part]))
        for old, part in zip(state.values, parts_of(values.shape[1]), strict=True)
    )
    return state._replace(values=summed)


def iota(shape: tuple[int, ...], axis: int) -> jax.Array:
    """Return int32 indices along an axis, laid out as the result of wgmma."""
    index: jax.Array = plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=plgpu.Layout.WGMMA)
    return index


def clear_unused(values: Any, first_key: jax.Array, start: jax.Array, end: jax.Array) -> None:
    """Put zeros in place of the values of keys outside [start, end): they may be NaN, which a weight of 0 does not cancel."""
    for part in _columns(values.shape[1], 64):  # few registers at a time: who loads pages has 40
        columns = values.at[:, part]
        loaded = plgpu.load(columns, layout=plgpu.Layout.WGMMA)
        key = iota(loaded.shape, 0) + first_key
        columns[...] = jnp.where((key >= start) & (key < end), loaded, jnp.zeros_like(loaded))
    plgpu.commit_smem()


def _over_rows(scales: Any) -> jax.Array:
    """Read [BLOCK_KEYS] scales as f32 [64, BLOCK_KEYS], the same in every row."""
    along = plgpu.load(scales, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
    return lax.broadcast_in_dim(along.astype(jnp.float32), (WGMMA_ROWS, BLOCK_KEYS), [1])


def _columns(dim: int, width: int) -> list[Any]:
    return [pl.ds(first, min(width, dim - first)) for first in range(0, dim, width)]


def _product(left: Any, right: Any) -> jax.Array:
    def multiply(accumulator: Any) -> jax.Array:
        plgpu.wgmma(accumulator, left, right)
        product: jax.Array = accumulator[...]
        return product

    result: jax.Array = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((left.shape[0], right.shape[1]), jnp.float32))
    return result
