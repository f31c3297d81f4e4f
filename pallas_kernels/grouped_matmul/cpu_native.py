"""grouped_matmul in C++ (native.cc): every matrix that has rows is read once, where it lies."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import native
from pallas_kernels.grouped_matmul.problem import GroupedProblem

LIMITS = "rows and weights of bfloat16 or float32"


def supports(problem: GroupedProblem) -> str | None:
    if problem.dtype not in (jnp.bfloat16, jnp.float32):
        return f"rows and weights must be bfloat16 or float32, not {problem.dtype.name}"
    return None


def grouped_matmul(
    x: jax.Array,
    weights: jax.Array,
    group_sizes: jax.Array,
    *,
    dtype: jnp.dtype,
    expected_rows: int,
    instruction_set: str = "best",
) -> jax.Array:
    """See api.py. A row's result does not depend on the other rows; `expected_rows` changes nothing.

    A program fails when it runs if the groups have more rows than there are. `instruction_set` is as in matmul/cpu_native.py.
    """
    result = jax.ShapeDtypeStruct((x.shape[0], weights.shape[2]), jnp.float32)
    multiply = jax.ffi.ffi_call(native.target_name("GroupedMatmul"), result)
    product: jax.Array = multiply(x, weights, group_sizes, instruction_set=instruction_set)
    return product.astype(dtype)
