"""What the Triton kernel runs on and computes; asked before it is imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import jax.numpy as jnp

from pallas_kernels.checks import QUANTIZED_DTYPES
from pallas_kernels.ragged_paged_attention.problem import AttentionProblem
from pallas_kernels.registry import Target

OLDEST = (8, 0)
OLDEST_TRITON = (3, 7)  # that jax-triton 0.4 compiles with; with an older one it fails where a kernel is compiled
LARGEST_HEAD_DIM = 256
LARGEST_GROUP = 64
LIMITS = (
    "GPUs of compute capability 8.0 or later with jax-triton, queries in bfloat16 or float16 and a cache in the same "
    "dtype, in float8_e4m3fn or in int8, head dims up to 256, and at most 64 query heads to a KV head"
)


def runs_on(target: Target) -> str | None:
    if target.platform != "gpu" or target.capability is None or target.capability < OLDEST:
        return f"it needs a GPU of compute capability 8.0 or later, not {target}"
    if find_spec("jax_triton") is None:
        return "jax-triton is not installed"
    try:
        installed = version("triton")  # jax-triton's own requirement, which an environment can break
    except PackageNotFoundError:
        return "jax-triton needs Triton, which is not installed"
    if tuple(int(part) for part in installed.split(".")[:2]) < OLDEST_TRITON:
        return f"jax-triton needs Triton {OLDEST_TRITON[0]}.{OLDEST_TRITON[1]} or newer, not {installed}"
    return None


def supports(problem: AttentionProblem) -> str | None:
    if problem.options.value_dim is not None:
        return "it reads values, and this cache has none beside its keys"
    if problem.dtype not in (jnp.bfloat16, jnp.float16):
        return f"queries must be bfloat16 or float16, not {problem.dtype.name}"
    if problem.kv_dtype not in (problem.dtype, *QUANTIZED_DTYPES):
        return f"the cache must have the queries' {problem.dtype.name}, or be quantized, not {problem.kv_dtype.name}"
    if problem.head_dim > LARGEST_HEAD_DIM:
        return f"the head dim can be {LARGEST_HEAD_DIM} at most, not {problem.head_dim}"
    if problem.heads // problem.kv_heads > LARGEST_GROUP:
        return f"a KV head can have {LARGEST_GROUP} query heads at most, not {problem.heads // problem.kv_heads}"
    return None
