"""What the Triton kernel runs on and computes; asked before it is imported."""

from __future__ import annotations

from importlib.util import find_spec

import jax.numpy as jnp

from pallas_kernels.ragged_paged_attention.problem import AttentionProblem
from pallas_kernels.registry import Target

LARGEST_HEAD_DIM = 256
LARGEST_GROUP = 64
LIMITS = (
    "GPUs of compute capability 8.x with jax-triton, queries and cache both bfloat16 or both float16, head dims up to 256, and "
    "at most 64 query heads to a KV head"
)


def runs_on(target: Target) -> str | None:
    """Say why the kernel does not run on a device, or None if it does."""
    if target.platform != "gpu" or target.capability is None or target.capability[0] != 8:
        return f"it needs a GPU of compute capability 8.x, not {target}"
    if find_spec("jax_triton") is None:
        return "jax-triton is not installed"
    return None


def supports(problem: AttentionProblem) -> str | None:
    """Say why the kernel does not compute a problem, or None if it does."""
    if problem.value_dim is not None:
        return "it reads values, and this cache has none beside its keys"
    if problem.dtype not in (jnp.bfloat16, jnp.float16):
        return f"queries must be bfloat16 or float16, not {problem.dtype.name}"
    if problem.kv_dtype != problem.dtype:
        return f"the cache must have the queries' {problem.dtype.name}, not {problem.kv_dtype.name}"
    if problem.head_dim > LARGEST_HEAD_DIM:
        return f"the head dim can be {LARGEST_HEAD_DIM} at most, not {problem.head_dim}"
    if problem.heads // problem.kv_heads > LARGEST_GROUP:
        return f"a KV head can have {LARGEST_GROUP} query heads at most, not {problem.heads // problem.kv_heads}"
    return None


def suits(problem: AttentionProblem) -> str | None:
    """Say why the kernel is not picked for a problem, or None if it is."""
    if problem.tokens > problem.rows:
        return "it computes prompts a token at a time"
    return None
