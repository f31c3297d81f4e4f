"""add_lora in C++ (native.cc): the matrices of adapters that have rows are read once, and y is added to where it lies."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import native
from pallas_kernels.add_lora.problem import LoraProblem

LIMITS = "bfloat16 or float32"


def supports(problem: LoraProblem) -> str | None:
    if problem.dtype not in (jnp.bfloat16, jnp.float32):
        return f"rows and matrices must be bfloat16 or float32, not {jnp.dtype(problem.dtype).name}"
    return None


def add_lora(
    y: jax.Array,
    x: jax.Array,
    a: jax.Array,
    b: tuple[jax.Array, ...],
    tokens: jax.Array,
    *,
    instruction_set: str = "best",
) -> jax.Array:
    """See api.py. A row's result does not depend on the other rows.

    A program fails when it runs if slots have more rows than there are. `instruction_set` is as in matmul/cpu_native.py.
    """
    shape = jax.ShapeDtypeStruct(y.shape, y.dtype)
    add = jax.ffi.ffi_call(native.target_name("AddLora"), shape, input_output_aliases={0: 0})
    result: jax.Array = add(y, x, a, tokens, *b, instruction_set=instruction_set)
    return result
