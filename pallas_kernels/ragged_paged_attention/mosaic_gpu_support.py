"""What the Mosaic GPU kernels compute; asked before they are imported."""

from __future__ import annotations

import jax.numpy as jnp

from pallas_kernels.checks import QUANTIZED_DTYPES
from pallas_kernels.ragged_paged_attention import mosaic_gpu_latent_support
from pallas_kernels.ragged_paged_attention.problem import AttentionProblem

PAGE_SIZES = (8, 16, 32, 64)
LARGEST_HEAD_DIM = 256
LARGEST_GROUP = 64  # query heads of a KV head: the rows of one wgmma
LIMITS = (
    "Hopper GPUs (compute capability 9.0) with jax 0.11.2 or newer, queries in bfloat16 or float16 and a cache in the same dtype "
    "or in float8_e4m3fn or int8, pages of 8, 16, 32 or 64 tokens, head dims that are multiples of 16 up to 256, and at most 64 "
    "query heads to a KV head; latents of up to 576 numbers with values of up to 512, without window, soft cap, sinks or float8"
)


def supports(problem: AttentionProblem) -> str | None:
    if problem.options.value_dim is not None:
        return mosaic_gpu_latent_support.supports(problem)
    if problem.dtype not in (jnp.bfloat16, jnp.float16):
        return f"queries must be bfloat16 or float16, not {problem.dtype.name}"
    if problem.kv_dtype not in (problem.dtype, *QUANTIZED_DTYPES):
        return f"the cache must have the queries' {problem.dtype.name}, or be quantized, not {problem.kv_dtype.name}"
    if problem.page_size not in PAGE_SIZES:
        return f"pages must have {', '.join(map(str, PAGE_SIZES[:-1]))} or {PAGE_SIZES[-1]} tokens, not {problem.page_size}"
    if problem.head_dim % 16 or problem.head_dim > LARGEST_HEAD_DIM:
        return f"the head dim must be a multiple of 16 up to {LARGEST_HEAD_DIM}, not {problem.head_dim}"
    group = problem.heads // problem.kv_heads
    if group > LARGEST_GROUP:
        return f"a KV head can have {LARGEST_GROUP} query heads at most, not {group}"
    return None
