"""int8 with a scale an output, and rows rounded to int8 too, each with a scale of its own (W8A8, dynamic per token).

A row's largest magnitude is 127 of its steps; products and sums are of whole numbers, exact in int32, and both scales multiply
the sum. So a row's result depends on nothing but the row, and is the same on every CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import jax
import jax.numpy as jnp

from pallas_kernels.quantization.int8 import LEVELS, SMALLEST_SCALE, Int8
from pallas_kernels.quantization.scheme import Axes, Dot, Scheme

MOST_INPUTS = 1 << 16  # of which no sum leaves an int32; native_kernels.h has it too


@dataclass(frozen=True, slots=True)
class W8A8(Int8):
    """See above. Values and scales are Int8's."""

    name: ClassVar[str] = "w8a8"
    dtypes: ClassVar[tuple[str, ...]] = Scheme.dtypes
    native_only: ClassVar[bool] = True

    def fitted(self, shape: tuple[int, ...], inputs: Axes) -> W8A8 | None:
        return self if prod(shape[axis] for axis in inputs) <= MOST_INPUTS else None

    def rows(self, x: jax.Array) -> jax.Array:
        rounded, steps = round_rows(x)
        return rounded.astype(jnp.float32) * jnp.expand_dims(steps, range(1, x.ndim))

    def product(self, x: jax.Array, values: jax.Array, scales: jax.Array, inputs: Axes, dot: Dot) -> jax.Array:
        rounded, steps = round_rows(x)
        sums = dot(rounded.astype(jnp.float32), values.astype(jnp.float32))
        return sums * (scales[None] * jnp.expand_dims(steps, range(1, scales.ndim + 1)))


def round_rows(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """x[T, *inputs] as whole numbers from -127 to 127, int8, and the float32 step [T] of each row."""
    x = x.astype(jnp.float32)
    axes = tuple(range(1, x.ndim))
    steps = jnp.maximum(jnp.max(jnp.abs(x), axis=axes) * (1 / LEVELS), SMALLEST_SCALE)
    return jnp.rint(x / jnp.expand_dims(steps, axes)).astype(jnp.int8), steps
