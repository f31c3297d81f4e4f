"""grouped_matmul in C++ (native.cc, native_quantized.cc): every matrix that has rows is read once, where it lies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import native
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.matmul import Matrix, Weight
from pallas_kernels.matmul.cpu_native import ANY_DTYPE, bfloat16_or_float32
from pallas_kernels.quantization import W8A8, Float8Weight, FourBit, Int8
from pallas_kernels.quantization.w8a8 import round_rows

LIMITS = "rows and weights of bfloat16 or float32, or weights packed in int8, FP8 or codes of 4 bits"
SCHEMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"plain": ("none",), "panels": (Int8.name, W8A8.name, Float8Weight.name), "code panels": (FourBit.name,)}
)
"""By layout."""


def supports(problem: GroupedProblem) -> str | None:
    if problem.scheme not in SCHEMES.get(problem.layout, ()):
        return f"there is no kernel for {problem.layout} of {problem.scheme}"
    if problem.dtype not in (jnp.bfloat16, jnp.float32) and problem.scheme not in ANY_DTYPE:
        return f"rows and weights must be bfloat16 or float32, not {problem.dtype.name}"
    return None


def grouped_matmul(
    x: jax.Array,
    weights: Weight,
    group_sizes: jax.Array,
    *,
    dtype: jnp.dtype,
    expected_rows: int,
    instruction_set: str = "best",
) -> jax.Array:
    """See api.py. A row's result does not depend on the other rows; `expected_rows` changes nothing.

    A program fails when it runs if the groups have more rows than there are. `instruction_set` is as in matmul/cpu_native.py.
    """
    name, arguments = _quantized(x, weights) if isinstance(weights, Matrix) else ("GroupedMatmul", (x, weights))
    outputs = weights.outputs if isinstance(weights, Matrix) else weights.shape[2]
    multiply = jax.ffi.ffi_call(native.target_name(name), jax.ShapeDtypeStruct((x.shape[0], outputs), jnp.float32))
    product: jax.Array = multiply(*arguments, group_sizes, instruction_set=instruction_set)
    return product.astype(dtype)


def _quantized(x: jax.Array, weights: Matrix) -> tuple[str, tuple[Any, ...]]:
    """The function for a stack's scheme, and its first arguments."""
    groups, scheme = weights.shape[0], weights.scheme
    if isinstance(scheme, FourBit):
        scales, *zeros = (part.reshape(groups, -1, weights.outputs) for part in weights.scales)
        none = jnp.zeros((groups, 0, weights.outputs), jnp.float32)
        return "GroupedMatmulFourBit", (
            bfloat16_or_float32(x),
            weights.values,
            scheme.table(),
            scales,
            zeros[0] if zeros else none,
        )
    if isinstance(scheme, W8A8):
        rounded, steps = round_rows(x)
        numbers = (rounded.astype(jnp.int32) + 128).astype(jnp.uint8)
        return "GroupedMatmulW8A8", (numbers, steps, weights.values, weights.scales.reshape(groups, -1))
    return "GroupedMatmulBytes", (bfloat16_or_float32(x), weights.values, weights.scales.reshape(groups, -1, weights.outputs))
