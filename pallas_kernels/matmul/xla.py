"""matmul as XLA's own dot."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.matmul.matrix import Matrix


def matmul(x: jax.Array, matrix: Matrix, summed: jnp.dtype | None = None) -> jax.Array:
    """See api.py. Panels are restored at every call, and all rows are multiplied: correct, and slow.

    The parameter's dimensions are contracted as they are: the compiler divides the product as the parameter is divided.
    """
    inputs, shape = matrix.layout.inputs, matrix.shape
    places, dtype = tuple(range(1, len(inputs) + 1)), summed or jnp.dtype("float32")

    def dot(x: jax.Array, values: jax.Array, steps: jax.Array | None = None) -> jax.Array:
        if steps is None:
            return jax.lax.dot_general(x, values, ((places, inputs), ((), ())), preferred_element_type=dtype).astype(jnp.float32)
        axes = (places[-1:], inputs[-1:]), (places[:-1], inputs[:-1])
        parts = jax.lax.dot_general(x, values, axes, preferred_element_type=dtype).astype(jnp.float32)
        parts *= jnp.expand_dims(jnp.moveaxis(steps, 0, -1), range(steps.ndim, parts.ndim))
        others = tuple(range(len(inputs) - 1))
        return jax.lax.reduce(parts.astype(dtype), dtype.type(0), jax.lax.add, others).astype(jnp.float32) if others else parts

    rows = x.reshape(x.shape[0], *(shape[axis] for axis in inputs))
    y = matrix.scheme.product(rows, matrix.layout.restore(matrix.values), matrix.scales, inputs, dot)
    if matrix.used_rows is None:
        return y
    real = jnp.arange(x.shape[0], dtype=jnp.int32) < matrix.used_rows
    return jnp.where(jnp.expand_dims(real, range(1, y.ndim)), y, 0.0)
