"""What the Mosaic GPU kernel of matmul computes; asked before it is imported."""

from __future__ import annotations

import jax.numpy as jnp

from pallas_kernels.matmul.problem import MatmulProblem
from pallas_kernels.matmul.words import BLOCK_INPUTS
from pallas_kernels.quantization import Float8Weight, FourBit

WIDTH = 64  # outputs of a wgmma
ALIGNED = 8  # outputs: TMA's strides are multiples of 16 bytes, and rows are stored in 16 bits
# XLA writes a copy in 16 bits and multiplies by that with cuBLASLt: 5 bytes a number where the kernel reads 1. On an H100 that is
# the time of about 500 rows of a product; from twice as many on, it is judged to be less than what cuBLASLt is faster by.
# Others have no such limit: XLA's product with them is in float32.
MOST_ROWS = 1024
GROUPS = (32, 64)
SCHEMES = ("int8", "int4", "fp8_weight")
LIMITS = (
    "Hopper GPUs (compute capability 9.0) with jax 0.11.2 or newer; matrices in words, of int8, of float8 in blocks of 128 "
    "inputs, or of codes of 4 bits in groups of 32, 64 or a multiple of 128 inputs; rows in bfloat16, with int8 1024 of them at "
    "most; inputs that are a multiple of 128 and outputs that are a multiple of 8, 64 at least"
)


def supports(problem: MatmulProblem) -> str | None:
    if problem.layout != "words":
        return f"the matrix must lie in words, not {problem.layout}"
    if problem.dtype != jnp.bfloat16:
        return f"rows must be bfloat16, not {problem.dtype.name}"
    if problem.rows > MOST_ROWS and problem.codes is None:
        return f"{MOST_ROWS} rows at most, not {problem.rows}: from there on a copy in 16 bits costs less"
    if problem.scheme not in SCHEMES:
        return f"numbers must be of {', '.join(SCHEMES)}, not {problem.scheme}"
    if reason := why_not_codes(problem.codes):
        return reason
    for name, count, width in (("inputs", problem.inputs, BLOCK_INPUTS), ("outputs", problem.outputs, ALIGNED)):
        if count % width:
            return f"{name} must be a multiple of {width}, not {count}"
    if problem.outputs < WIDTH:
        return f"outputs must be {WIDTH} at least, not {problem.outputs}"
    if problem.codes is not None and problem.codes.group is not None and problem.inputs % problem.codes.group:
        return f"groups of {problem.codes.group} inputs must divide the inputs, {problem.inputs}"
    return None


def why_not_codes(codes: FourBit | Float8Weight | None) -> str | None:
    """Say why the kernel does not take numbers of a scheme that has more to say than its name, or None if it does."""
    if codes is None:
        return None
    if isinstance(codes, Float8Weight):
        return None if codes.group == BLOCK_INPUTS else f"blocks of float8 must have {BLOCK_INPUTS} inputs, not {codes.group}"
    if codes.numbers != "int4" and codes.zeros:
        return f"codes of {codes.numbers} must have no zeros"
    if codes.group not in GROUPS and codes.group % BLOCK_INPUTS:
        return f"groups must have 32, 64 or a multiple of 128 inputs, not {codes.group}"
    return None
