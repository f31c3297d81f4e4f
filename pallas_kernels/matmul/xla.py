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
    axes = (tuple(range(1, len(inputs) + 1)), inputs), ((), ())

    def dot(x: jax.Array, values: jax.Array) -> jax.Array:
        return jax.lax.dot_general(x, values, axes, preferred_element_type=summed or jnp.float32).astype(jnp.float32)

    rows = x.reshape(x.shape[0], *(shape[axis] for axis in inputs))
    y = matrix.scheme.product(rows, matrix.layout.restore(matrix.values), matrix.scales, inputs, dot)
    if matrix.used_rows is None:
        return y
    real = jnp.arange(x.shape[0], dtype=jnp.int32) < matrix.used_rows
    return jnp.where(jnp.expand_dims(real, range(1, y.ndim)), y, 0.0)
