"""matmul as XLA's own dot."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.matmul.matrix import Matrix
from pallas_kernels.quantization.scheme import Factors
from pallas_kernels.round_rows import Rounded


def matmul(x: jax.Array | Rounded, matrix: Matrix, summed: jnp.dtype | None = None) -> jax.Array:
    """See api.py. Panels are restored at every call, and all rows are multiplied: correct, and slow.

    The parameter's dimensions are contracted as they are: the compiler divides the product as the parameter is divided.
    """
    inputs, shape = matrix.layout.inputs, matrix.shape
    places, dtype = tuple(range(1, len(inputs) + 1)), summed or jnp.dtype("float32")

    def dot(x: jax.Array, values: jax.Array, factors: Factors | None = None) -> jax.Array:
        if factors is None:
            return jax.lax.dot_general(x, values, ((places, inputs), ((), ())), preferred_element_type=dtype).astype(jnp.float32)
        axes = (places[-1:], inputs[-1:]), (places[:-1], inputs[:-1])
        steps, scales = factors
        parts = jax.lax.dot_general(x, values, axes, preferred_element_type=dtype).astype(jnp.float32)
        parts = jax.lax.slice_in_dim(parts, 0, steps.shape[0], axis=steps.ndim - 1)
        parts *= jnp.expand_dims(jnp.moveaxis(steps, 0, -1), range(steps.ndim, parts.ndim))
        parts *= jnp.expand_dims(scales, range(steps.ndim))
        others = tuple(range(len(inputs) - 1))
        return jax.lax.reduce(parts.astype(dtype), dtype.type(0), jax.lax.add, others).astype(jnp.float32) if others else parts

    rows: Any = x.reshape(x.shape[0], *(shape[axis] for axis in inputs))  # rounded ones are multiplied by FP8 alone
    y = matrix.scheme.product(rows, matrix.layout.restore(matrix.values), matrix.scales, inputs, dot)
    if matrix.used_rows is None:
        return y
    real = jnp.arange(x.shape[0], dtype=jnp.int32) < matrix.used_rows
    return jnp.where(jnp.expand_dims(real, range(1, y.ndim)), y, 0.0)


def unscaled(x: Rounded, matrix: Matrix) -> jax.Array:
    """FP8 rows x[T, I] times the values of a matrix [I, *outputs], without scales: [T, *outputs], rounded to x's dtype."""
    values, inputs = matrix.layout.restore(matrix.values), matrix.layout.inputs
    return jax.lax.dot_general(x.values, values, (((1,), inputs), ((), ())), preferred_element_type=x.dtype)[: x.shape[0]]
