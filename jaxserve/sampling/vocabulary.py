"""Vocabulary: the tokens that the columns of an array stand for, where every device holds a part of them.

The sampler runs on each device with that device's columns of the logits and of its own tables. What it must know of the
others fits in a few numbers a row, so no device ever holds a row of logits as long as the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxserve.ordering import ranked
from jaxserve.types import MASK_BITS

LAST_INT32 = 2**31 - 1
LARGEST = float(np.finfo(np.float32).max)
TOP_AT_ONCE = 16  # XLA has a kernel for so many on GPUs
FEW = 256  # numbers that are compared each with each
SMALLEST_BLOCK = 4  # of numbers whose maximum is worth a look


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Which tokens the columns of [R, C] arrays are, and reductions over all tokens of what each device found in its own.

    Device i of the axis holds tokens i * C to (i + 1) * C - 1. Columns from `size` on are padding: their logits are -inf.
    Every device gets the same result.

    Attributes:
        size: V, tokens of the whole vocabulary.
        axis: the mesh axis, or several, that divide it, inside a shard_map over them; None where the columns are all of it.
    """

    size: int
    axis: str | tuple[str, ...] | None = None

    def first(self, columns: int) -> jax.Array:
        """The token of the first of this device's `columns` columns: int32 scalar."""
        return jnp.int32(0) if self.axis is None else lax.axis_index(self.axis).astype(jnp.int32) * columns

    def tokens(self, shape: tuple[int, ...]) -> jax.Array:
        """The token of every place of an array [R, C]: int32 [R, C]."""
        return self.first(shape[1]) + lax.broadcasted_iota(jnp.int32, shape, 1)

    def columns(self, tokens: jax.Array, count: int) -> jax.Array:
        """The columns of tokens int32 [...] among this device's `count`; `count` for others' tokens and negative ones."""
        column = tokens - self.first(count)
        return jnp.where((column >= 0) & (column < count), column, count)

    def mask_of(self, masks: jax.Array, count: int) -> jax.Array:
        """Bool [R, count] of this device's columns, from masks int32 [R, W] of all tokens: bit i of word w is of token 32 w + i.

        Where devices divide the vocabulary, W is a word more than its tokens and their padding take: parts begin inside of words.
        """
        first = self.first(count)
        words = -(-count // MASK_BITS)
        if self.axis is not None:
            part = lax.dynamic_slice_in_dim(masks, first // MASK_BITS, words + 1, axis=1)
            shift = first % MASK_BITS
            high = jnp.where(shift == 0, 0, part[:, 1:] << (MASK_BITS - shift))
            masks = lax.shift_right_logical(part[:, :-1], jnp.broadcast_to(shift, (masks.shape[0], words))) | high
        bits = (masks[:, :words, None] >> jnp.arange(MASK_BITS, dtype=jnp.int32)[None, None]) & 1
        return bits.reshape(masks.shape[0], -1)[:, :count] != 0

    def total(self, values: jax.Array) -> jax.Array:
        """The sum of every device's values, of any shape."""
        return values if self.axis is None else lax.psum(values, self.axis)

    def largest(self, values: jax.Array) -> jax.Array:
        """The largest of every device's values, of any shape."""
        return values if self.axis is None else lax.pmax(values, self.axis)

    def earlier(self, values: jax.Array) -> jax.Array:
        """The sum of the values [R] of devices that have lower tokens."""
        if self.axis is None:
            return jnp.zeros_like(values)
        each = lax.all_gather(values, self.axis)
        device = jnp.arange(each.shape[0], dtype=jnp.int32)[:, None]
        return jnp.sum(jnp.where(device < lax.axis_index(self.axis), each, 0), axis=0)

    def best(self, score: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The largest score and the lowest token that has it.

        Args:
            score: f32 [R], the largest of this device's.
            token: int32 [R], the lowest of this device's tokens with that score; a negative one wins over all others.

        Returns:
            The same of all devices, [R] each.
        """
        if self.axis is None:
            return score, token
        # One exchange of two numbers a row.
        both = lax.all_gather(jnp.stack([lax.bitcast_convert_type(score, jnp.int32), token]), self.axis)
        scores, tokens = lax.bitcast_convert_type(both[:, 0], jnp.float32), both[:, 1]
        largest = jnp.max(scores, axis=0)
        candidates = jnp.where(scores == largest[None], tokens, LAST_INT32)
        return largest, jnp.min(jnp.where(tokens < 0, tokens, candidates), axis=0)

    def top(self, scores: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        """The `count` largest of all devices' scores [R, C], f32 [R, count], and their tokens int32; ties by token."""
        values, columns = _top(scores, min(count, scores.shape[1]))
        tokens = columns.astype(jnp.int32) + self.first(scores.shape[1])
        if self.axis is None:
            return values, tokens
        # In the order of the devices, which is that of their tokens: top_k takes the first of equals.
        values = lax.all_gather(values, self.axis, axis=1, tiled=True)
        tokens = lax.all_gather(tokens, self.axis, axis=1, tiled=True)
        values, places = _top(values, count)
        return values, jnp.take_along_axis(tokens, places, axis=1)


def _top(scores: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """lax.top_k, without looking for them in whole rows: CPUs sort what they look through.

    Each of the `count` largest is in one of the `count` blocks that have the largest maxima, with ties by place in both.
    """
    rows, columns = scores.shape
    size = math.isqrt(columns // count)  # as many blocks as numbers in those that are looked through
    if columns <= FEW or size < SMALLEST_BLOCK:
        return _largest(scores, count)
    spare = -columns % size
    blocks = jnp.pad(scores, ((0, 0), (0, spare)), constant_values=-jnp.inf).reshape(rows, -1, size)
    _, chosen = _largest(jnp.max(blocks, axis=2), count)
    chosen = jnp.take_along_axis(chosen, ranked(-chosen), axis=1)
    values, places = _largest(jnp.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(rows, -1), count)
    return values, jnp.take_along_axis(chosen, places // size, axis=1) * size + places % size


def _largest(scores: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """lax.top_k, without sorting: XLA sorts a few numbers, and wherever it is asked for more than TOP_AT_ONCE."""
    if scores.shape[1] <= FEW:
        columns = ranked(scores)[:, :count]
        return jnp.take_along_axis(scores, columns, axis=1), columns
    column = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    left, found = scores, list[jax.Array]()
    while (more := count - sum(columns.shape[1] for columns in found)) > 0:
        values, columns = lax.top_k(left, min(more, TOP_AT_ONCE))
        found.append(columns)
        last, place = values[:, -1:], columns[:, -1:]
        taken = (left > last) | ((left == last) & (column <= place))
        # What is left stays above what is taken, even if it was infinite.
        left = jnp.where(taken, -jnp.inf, jnp.maximum(left, -LARGEST) if left is scores else left)
    every = jnp.concatenate(found, axis=1)
    return jnp.take_along_axis(scores, every, axis=1), every
