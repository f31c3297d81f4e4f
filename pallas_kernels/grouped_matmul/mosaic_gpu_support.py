"""What the Mosaic GPU kernels of grouped_matmul compute; asked before they are imported."""

from __future__ import annotations

import jax.numpy as jnp

from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.matmul.mosaic_gpu_support import SCHEMES, why_not_codes
from pallas_kernels.matmul.words import BLOCK_INPUTS
from pallas_kernels.quantization import Float8Weight

WIDTH = 64
LIMITS = (
    "Hopper GPUs (compute capability 9.0) with jax 0.11.2 or newer; rows and weights in bfloat16 or float16, a result of that "
    "dtype or in float32; widths that are multiples of 64; or rows in bfloat16 and weights in words, of int8, of float8 with a "
    "factor an output or for 128 inputs, or of codes of 4 bits in groups of 32, 64 or a multiple of 128; then 128 inputs or more"
)


def supports(problem: GroupedProblem) -> str | None:
    if problem.layout == "words":
        return _why_not_in_words(problem)
    if problem.layout != "plain":
        return "weights must lie plain, or in words"
    if problem.dtype not in (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)):
        return f"rows and weights must be bfloat16 or float16, not {problem.dtype.name}"
    if reason := _why_not_result(problem):
        return reason
    for name, width in (("rows", problem.inputs), ("results", problem.outputs)):
        if width % WIDTH:
            return f"the width of {name} must be a multiple of {WIDTH}, not {width}"
    return None


def _why_not_in_words(problem: GroupedProblem) -> str | None:
    if problem.dtype != jnp.bfloat16:
        return f"rows must be bfloat16, not {problem.dtype.name}"
    if problem.scheme not in SCHEMES:
        return f"numbers must be of {', '.join(SCHEMES)}, not {problem.scheme}"
    one_factor = isinstance(problem.codes, Float8Weight) and problem.codes.group is None
    if not one_factor and (reason := why_not_codes(problem.codes)):
        return reason
    if problem.inputs < BLOCK_INPUTS:
        return f"there must be {BLOCK_INPUTS} inputs or more, not {problem.inputs}"
    if problem.outputs % WIDTH:
        return f"outputs must be a multiple of {WIDTH}, not {problem.outputs}"
    return _why_not_result(problem)


def _why_not_result(problem: GroupedProblem) -> str | None:
    if problem.result_dtype in (problem.dtype, jnp.dtype(jnp.float32)):
        return None
    return f"the result must be {problem.dtype.name} like the rows, or float32, not {problem.result_dtype.name}"
