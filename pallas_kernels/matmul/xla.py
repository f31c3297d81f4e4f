"""matmul as XLA's own dot."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.matmul.packed import PackedMatrix


def matmul(x: jax.Array, matrix: jax.Array | PackedMatrix) -> jax.Array:
    """See api.py. Panels are brought back into a plain matrix at every call, and all rows are multiplied: correct, and slow."""
    if not isinstance(matrix, PackedMatrix):
        return jnp.dot(x, matrix, preferred_element_type=jnp.float32)
    if matrix.form == "rows":
        rows = matrix.values.reshape(matrix.outputs, matrix.inputs)
        y = jnp.einsum("ti,oi->to", x, rows, preferred_element_type=jnp.float32)
    else:
        y = jnp.dot(x, matrix.columns().astype(x.dtype), preferred_element_type=jnp.float32)
    if matrix.scales is not None:
        y *= matrix.scales[None]
    if matrix.used_rows is None:
        return y
    return jnp.where(jnp.arange(x.shape[0], dtype=jnp.int32)[:, None] < matrix.used_rows, y, 0.0)
