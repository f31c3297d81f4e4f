"""ragged_attention in C++ (native.cc), in the tiles of attention over pages: scores stay in a core's cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import native
from pallas_kernels.ragged_attention.problem import RaggedProblem
from pallas_kernels.ragged_paged_attention import AttentionOptions

LIMITS = "bfloat16 and float32"
_NO_WINDOW = int(np.iinfo(np.int64).max)


def supports(problem: RaggedProblem) -> str | None:
    return (
        None if problem.dtype in (jnp.bfloat16, jnp.float32) else f"arrays must be bfloat16 or float32, not {problem.dtype.name}"
    )


def ragged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    query_start: jax.Array,
    options: AttentionOptions,
    *,
    instruction_set: str = "best",
) -> jax.Array:
    """See api.py. With AVX512_BF16 the weights of bfloat16 values are rounded to bfloat16, and denormal numbers are 0.

    A row's result does not depend on the others. `instruction_set` is as in matmul/cpu_native.py.
    """
    attend = jax.ffi.ffi_call(native.target_name("RaggedAttention"), jax.ShapeDtypeStruct(q.shape, q.dtype))
    attended: jax.Array = attend(
        q,
        k,
        v,
        query_start,
        scale=np.float32(options.scale),
        window=_NO_WINDOW if options.window is None else options.window,
        soft_cap=np.float32(options.soft_cap or 0.0),
        instruction_set=instruction_set,
    )
    return attended
