"""matmul as XLA's own dot."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.matmul.packed import PackedMatrix


def matmul(x: jax.Array, matrix: jax.Array | PackedMatrix) -> jax.Array:
    """See api.py. Panels are brought back into a plain matrix at every call: correct, and slow."""
    if isinstance(matrix, PackedMatrix):
        plain = matrix.plain()
        if matrix.form == "rows":
            return jnp.einsum("ti,oi->to", x, plain.reshape(matrix.outputs, matrix.inputs), preferred_element_type=jnp.float32)
        matrix = plain.reshape(matrix.inputs, matrix.outputs)
    return jnp.dot(x, matrix, preferred_element_type=jnp.float32)
