"""matmul in C++ (native.cc), for packed matrices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp

from pallas_kernels import native
from pallas_kernels.matmul.matrix import Matrix
from pallas_kernels.matmul.problem import MatmulProblem
from pallas_kernels.quantization import W8A8, Float8Weight, FourBit, outputs_of
from pallas_kernels.quantization.w8a8 import round_rows

LIMITS = "packed matrices of bfloat16, float32, int8, FP8 or codes of 4 bits"
SCHEMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"panels": ("none", "int8", "w8a8", "fp8_weight"), "rows": ("none",), "code panels": ("int4",)}
)
"""By layout."""
ANY_DTYPE = (FourBit.name, W8A8.name, Float8Weight.name)
"""Schemes whose rows may be float16, too."""


def supports(problem: MatmulProblem) -> str | None:
    if problem.layout not in SCHEMES:
        return "the matrix must be packed"
    if problem.scheme not in SCHEMES[problem.layout]:
        return f"{problem.layout} must be of {' or '.join(SCHEMES[problem.layout])}, not {problem.scheme}"
    if problem.dtype not in (jnp.bfloat16, jnp.float32) and problem.scheme not in ANY_DTYPE:
        return f"rows and matrix must be bfloat16 or float32, not {problem.dtype.name}"
    return None


def matmul(x: jax.Array, matrix: Matrix, instruction_set: str = "best") -> jax.Array:
    """See api.py.

    A row's result does not depend on the other rows, nor on how many there are. Rows that are not used take no time but that of
    writing zeros; more used rows than there are make a program fail when it runs. With AVX512_BF16 denormal numbers are 0.

    Args:
        x: [T, I].
        matrix: packed.
        instruction_set: the only one to use, as native/library.py names it, or "portable" C++; what the CPU does not have, or the
            scheme no kernel for, becomes that too. "best" takes the first there is of amx, avx512bf16, avx512, avx2, and of
            w8a8 amx, avx512vnni, avx2; on Intel's CPUs avx512 before avx512bf16 but for FP8.
    """
    rows = x.shape[0]
    if isinstance(matrix.scheme, FourBit):
        return _four_bit(x, matrix, matrix.scheme, instruction_set)
    if isinstance(matrix.scheme, W8A8):
        return _w8a8(x, matrix, instruction_set)
    multiply = jax.ffi.ffi_call(native.target_name("Matmul"), jax.ShapeDtypeStruct((rows, matrix.outputs), jnp.float32))
    used = jnp.int32(rows) if matrix.used_rows is None else matrix.used_rows
    scales = jnp.zeros((0, matrix.outputs), jnp.float32) if matrix.scales is None else matrix.scales.reshape(-1, matrix.outputs)
    panels, wide = matrix.layout.name == "panels", bfloat16_or_float32(x.reshape(rows, -1))
    product: jax.Array = multiply(wide, matrix.values, scales, used, panels=panels, instruction_set=instruction_set)
    return product.reshape(rows, *outputs_of(matrix.shape, matrix.layout.inputs))


def _w8a8(x: jax.Array, matrix: Matrix, instruction_set: str) -> jax.Array:
    """Rows are rounded by XLA; the kernel's are unsigned."""
    rows = x.shape[0]
    rounded, steps = round_rows(x.reshape(rows, -1))
    multiply = jax.ffi.ffi_call(native.target_name("MatmulW8A8"), jax.ShapeDtypeStruct((rows, matrix.outputs), jnp.float32))
    product: jax.Array = multiply(
        (rounded.astype(jnp.int32) + 128).astype(jnp.uint8),
        steps,
        matrix.values,
        matrix.scales.reshape(-1),
        jnp.int32(rows) if matrix.used_rows is None else matrix.used_rows,
        instruction_set=instruction_set,
    )
    return product.reshape(rows, *outputs_of(matrix.shape, matrix.layout.inputs))


def _four_bit(x: jax.Array, matrix: Matrix, scheme: FourBit, instruction_set: str) -> jax.Array:
    """Sums are in float32. The kernel chooses whether rows in bfloat16 become that too: it is what looking a code up gives."""
    rows, outputs = x.shape[0], matrix.outputs
    scales, zeros = matrix.scales if scheme.zeros else (*matrix.scales, jnp.zeros((0, outputs), jnp.float32))
    multiply = jax.ffi.ffi_call(native.target_name("MatmulFourBit"), jax.ShapeDtypeStruct((rows, outputs), jnp.float32))
    product: jax.Array = multiply(
        bfloat16_or_float32(x.reshape(rows, -1)),
        matrix.values,
        scheme.table(),
        scales.reshape(-1, outputs),
        zeros.reshape(-1, outputs),
        jnp.int32(rows) if matrix.used_rows is None else matrix.used_rows,
        instruction_set=instruction_set,
    )
    return product.reshape(rows, *outputs_of(matrix.shape, matrix.layout.inputs))


def bfloat16_or_float32(x: jax.Array) -> jax.Array:
    """Rows as kernels take them: those of float16 wider."""
    return x.astype(jnp.float32) if x.dtype == jnp.float16 else x
