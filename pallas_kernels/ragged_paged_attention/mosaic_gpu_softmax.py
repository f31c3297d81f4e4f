"""What one warpgroup does with a block of keys, in decode and prefill alike: an online softmax over wgmma tiles.

A tile has 64 rows, pairs of a query and a head, and the keys of a block. Logits are in base 2, which is what the hardware
exponentiates. Weights stay in registers: the layout in which wgmma leaves scores is the one in which it takes a left operand.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.ragged_paged_attention.options import AttentionOptions

BLOCK_KEYS = 64  # the fewest rows that the register layout in which values are cleared allows
WGMMA_ROWS = 64
CLEARED_COLUMNS = 64  # at once: few registers at a time, because who loads pages has 40
LOG2_E = math.log2(math.e)
# Scores are masked with this and not with -inf, which cannot be subtracted from itself.
MASKED = -1e30


class Sums(NamedTuple):
    """What a softmax knows of the rows of a tile, f32 [64]: largest logit and sum of weights."""

    largest: jax.Array
    total: jax.Array


def leaving_columns(dim: int) -> int:
    """Return how many columns of the sums of weighted values leave a decode block at once."""
    return dim // 2 if dim <= 128 else 64


def no_values(dim: int) -> jax.Array:
    """Return the sum of weighted values before any key, f32 [64, D]."""
    values: jax.Array = plgpu.layout_cast(jnp.zeros((WGMMA_ROWS, dim), jnp.float32), plgpu.Layout.WGMMA)
    return values


def no_sums() -> Sums:
    """Return what is known before any key."""
    rows = plgpu.Layout.WGMMA.reduce(1)
    return Sums(*(plgpu.layout_cast(jnp.full((WGMMA_ROWS,), start, jnp.float32), rows) for start in (MASKED, 0.0)))


def logits(scores: jax.Array, options: AttentionOptions, scales: jax.Array | None) -> jax.Array:
    """Return the logits of a tile, f32 like its scores [64, keys].

    Args:
        scores: queries times keys.
        options: of the operation.
        scales: of a quantized cache's keys, f32 [keys]; else None. Those of keys that are masked may be anything.
    """
    if scales is not None:
        scores *= lax.broadcast_in_dim(scales, scores.shape, [1])
    if options.soft_cap is None:
        return scores * (options.scale * LOG2_E)
    # tanh from exp2: the hardware's own is off by 5e-4, which the cap multiplies.
    grown = jnp.exp2(scores * (2.0 * LOG2_E * options.scale / options.soft_cap))
    return (options.soft_cap * LOG2_E) * (1.0 - 2.0 / (grown + 1.0))


def absorb(sums: Sums, logit: jax.Array, scales: jax.Array | None) -> tuple[Sums, jax.Array, jax.Array]:
    """Take the logits of a block of keys into the sums.

    Args:
        sums: of the blocks before.
        logit: f32 [64, keys].
        scales: of a quantized cache's values, f32 [keys], which multiply the weights; else None. Finite for masked keys too.

    Returns:
        The sums; the factor f32 [64] that values added up before are still to be multiplied with; the weights f32 [64, keys].
    """
    largest = jnp.maximum(sums.largest, logit.max(axis=1))
    fade = jnp.exp2(sums.largest - largest)
    weight = jnp.exp2(logit - over_columns(largest, logit))
    sums = Sums(largest, sums.total * fade + weight.sum(axis=1))
    if scales is not None:
        weight *= lax.broadcast_in_dim(scales, weight.shape, [1])
    return sums, fade, weight


def over_columns(rows: jax.Array, like: jax.Array) -> jax.Array:
    """Repeat [64] in every column of an array [64, N]."""
    return lax.broadcast_in_dim(rows, like.shape, [0])


def iota(shape: tuple[int, ...], axis: int) -> jax.Array:
    """Return int32 indices along an axis, laid out as the result of wgmma."""
    index: jax.Array = plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=plgpu.Layout.WGMMA)
    return index


def clear_unused(values: Any, start: jax.Array, end: jax.Array) -> None:
    """Put zeros in place of the rows outside [start, end) of a block of values: NaN is not cancelled by a weight of 0.

    They are to be committed.
    """
    dim = values.shape[1]
    for first in range(0, dim, CLEARED_COLUMNS):
        columns = values.at[:, pl.ds(first, min(CLEARED_COLUMNS, dim - first))]
        loaded = plgpu.load(columns, layout=plgpu.Layout.WGMMA)
        key = iota(loaded.shape, 0)
        columns[...] = jnp.where((key >= start) & (key < end), loaded, jnp.zeros_like(loaded))
