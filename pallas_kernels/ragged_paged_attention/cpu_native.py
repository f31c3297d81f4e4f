"""ragged_paged_attention in C++ (native.cc): every page is read once for the heads that share it, and a block of queries."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels import native
from pallas_kernels.checks import QUANTIZED_DTYPES
from pallas_kernels.ragged_paged_attention.options import AttentionOptions
from pallas_kernels.ragged_paged_attention.problem import AttentionProblem

LIMITS = "queries in bfloat16 or float32, and a cache of their dtype, in float8_e4m3fn or in int8"
NO_WINDOW = int(np.iinfo(np.int64).max)


def supports(problem: AttentionProblem) -> str | None:
    if problem.dtype not in (jnp.bfloat16, jnp.float32):
        return f"queries must be bfloat16 or float32, not {problem.dtype.name}"
    if problem.kv_dtype not in (problem.dtype, *QUANTIZED_DTYPES):
        return f"the cache must have the queries' {problem.dtype.name}, or be quantized, not {problem.kv_dtype.name}"
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
    kv_scales: jax.Array | None,
    sinks: jax.Array | None,
    instruction_set: str = "best",
) -> jax.Array:
    """See api.py. With AVX512_BF16 the weights of bfloat16 values are rounded to bfloat16, and denormal numbers are 0.

    A token's result does not depend on what else is in the batch, nor on how its row is cut into chunks. A program fails when it
    runs if pages or lengths point outside the arrays. `instruction_set` is as in matmul/cpu_native.py.
    """
    result = jax.ShapeDtypeStruct((*q.shape[:2], options.value_dim or q.shape[2]), q.dtype)
    if kv_pages.dtype == jnp.float8_e4m3fn:
        kv_pages = lax.bitcast_convert_type(kv_pages, jnp.uint8)
    attend = jax.ffi.ffi_call(native.target_name("RaggedPagedAttention"), result)
    attended: jax.Array = attend(
        q,
        kv_pages,
        page_table,
        query_start,
        kv_length,
        *(() if kv_scales is None else (kv_scales,)),
        *(() if sinks is None else (sinks.astype(jnp.float32),)),
        layer=layer,
        scale=np.float32(options.scale),
        window=NO_WINDOW if options.window is None else options.window,
        soft_cap=np.float32(options.soft_cap or 0.0),
        instruction_set=instruction_set,
    )
    return attended
