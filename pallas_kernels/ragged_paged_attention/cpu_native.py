"""ragged_paged_attention in C++ (native.cc): every page is read once for the heads that share it, and a block of queries."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import native
from pallas_kernels.ragged_paged_attention.options import AttentionOptions
from pallas_kernels.ragged_paged_attention.problem import AttentionProblem

LIMITS = "queries and cache of one dtype, bfloat16 or float32"
NO_WINDOW = int(np.iinfo(np.int64).max)


def supports(problem: AttentionProblem) -> str | None:
    if problem.kv_dtype not in (jnp.bfloat16, jnp.float32):
        return f"the cache must be bfloat16 or float32, not {problem.kv_dtype.name}"
    if problem.dtype != problem.kv_dtype:
        return f"queries must have the cache's {problem.kv_dtype.name}, not {problem.dtype.name}"
    return None


def ragged_paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    page_table: jax.Array,
    query_start: jax.Array,
    kv_length: jax.Array,
    *,
    layer: int,
    options: AttentionOptions,
    sinks: jax.Array | None,
    instruction_set: str = "best",
) -> jax.Array:
    """See api.py. With AVX512_BF16 the weights of bfloat16 values are rounded to bfloat16, and denormal numbers are 0.

    A token's result does not depend on what else is in the batch, nor on how its row is cut into chunks. A program fails when it
    runs if pages or lengths point outside the arrays. `instruction_set` is as in matmul/cpu_native.py.
    """
    result = jax.ShapeDtypeStruct((*q.shape[:2], options.value_dim or q.shape[2]), q.dtype)
    attend = jax.ffi.ffi_call(native.target_name("RaggedPagedAttention"), result)
    attended: jax.Array = attend(
        q,
        kv_pages,
        page_table,
        query_start,
        kv_length,
        *(() if sinks is None else (sinks.astype(jnp.float32),)),
        layer=layer,
        scale=np.float32(options.scale),
        window=NO_WINDOW if options.window is None else options.window,
        soft_cap=np.float32(options.soft_cap or 0.0),
        instruction_set=instruction_set,
    )
    return attended
