"""What the Mosaic GPU kernels for latents compute; asked before they are imported."""

from __future__ import annotations

import jax.numpy as jnp

from pallas_kernels.ragged_paged_attention.problem import AttentionProblem

PAGE_SIZES = (8, 16, 32, 64)
LARGEST_DIM = 576  # two blocks of 64 such latents and 64 queries fill the shared memory
LARGEST_VALUE = 512  # two warpgroups hold 64 of them in registers


def supports(problem: AttentionProblem) -> str | None:
    value_dim, options = problem.options.value_dim, problem.options
    if options.window is not None or options.soft_cap is not None or problem.sinks:
        return "over latents it computes no window, soft cap or sinks"
    if problem.dtype not in (jnp.bfloat16, jnp.float16):
        return f"queries must be bfloat16 or float16, not {problem.dtype.name}"
    if problem.kv_dtype != problem.dtype:
        return f"latents must have the queries' {problem.dtype.name}, not {problem.kv_dtype.name}"
    if problem.page_size not in PAGE_SIZES:
        return f"pages must have {', '.join(map(str, PAGE_SIZES[:-1]))} or {PAGE_SIZES[-1]} tokens, not {problem.page_size}"
    if problem.kv_heads != 1:
        return f"latents must be one a token on each device, not {problem.kv_heads}"
    if problem.head_dim % 16 or problem.head_dim > LARGEST_DIM:
        return f"a latent must be a multiple of 16 numbers up to {LARGEST_DIM}, not {problem.head_dim}"
    if value_dim is None or value_dim % 32 or value_dim > LARGEST_VALUE:
        return f"the value of a latent must be a multiple of 32 numbers up to {LARGEST_VALUE}, not {value_dim}"
    return None
