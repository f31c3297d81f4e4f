"""matmul in C++ (native.cc), for packed matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import native
from pallas_kernels.matmul.packed import PackedMatrix
from pallas_kernels.matmul.problem import MatmulProblem

LIMITS = "packed matrices of bfloat16, float32 or int8"


def supports(problem: MatmulProblem) -> str | None:
    """Say why a problem is not supported, or None if it is."""
    if problem.form == "plain":
        return "the matrix must be packed"
    if problem.dtype not in (jnp.bfloat16, jnp.float32):
        return f"rows and matrix must be bfloat16 or float32, not {problem.dtype.name}"
    return None


def matmul(x: jax.Array, matrix: PackedMatrix, instruction_set: str = "best") -> jax.Array:
    """See api.py.

    A row's result does not depend on the other rows, nor on how many there are. Rows that are not used take no time but that of
    writing zeros; more used rows than there are make a program fail when it runs. With AVX512_BF16 denormal numbers are 0.

    Args:
        x: [T, I].
        matrix: packed.
        instruction_set: the only one to use, as native/library.py names it, or "portable" C++; what the CPU does not have becomes
            that too. "best" takes the first there is of avx512bf16, avx512, avx2.
    """
    result = jax.ShapeDtypeStruct((x.shape[0], matrix.outputs), jnp.float32)
    multiply = jax.ffi.ffi_call(native.target_name("Matmul"), result)
    used = jnp.int32(x.shape[0]) if matrix.used_rows is None else matrix.used_rows
    scales = jnp.zeros(0, jnp.float32) if matrix.scales is None else matrix.scales
    panels = matrix.form == "panels"
    product: jax.Array = multiply(x, matrix.values, scales, used, panels=panels, instruction_set=instruction_set)
    return product
