"""What the Mosaic GPU kernel of grouped_matmul computes; asked before it is imported."""

from __future__ import annotations

import jax.numpy as jnp

from pallas_kernels.grouped_matmul.problem import GroupedProblem

WIDTH = 64
LIMITS = (
    "Hopper GPUs (compute capability 9.0) with jax 0.11.2 or newer; rows and weights in bfloat16 or float16, a result of that "
    "dtype or in float32; widths that are multiples of 64"
)


def supports(problem: GroupedProblem) -> str | None:
    if problem.layout != "plain":
        return "weights must lie plain"
    if problem.dtype not in (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)):
        return f"rows and weights must be bfloat16 or float16, not {problem.dtype.name}"
    if problem.result_dtype not in (problem.dtype, jnp.dtype(jnp.float32)):
        return f"the result must be {problem.dtype.name} like the rows, or float32, not {problem.result_dtype.name}"
    for name, width in (("rows", problem.inputs), ("results", problem.outputs)):
        if width % WIDTH:
            return f"the width of {name} must be a multiple of {WIDTH}, not {width}"
    return None
