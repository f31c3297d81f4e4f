"""What the Mosaic GPU kernels of kv_write compute; asked before they are imported."""

from __future__ import annotations

from pallas_kernels.kv_write.problem import WriteProblem

LARGEST_BOX = 256  # elements that TMA moves along one axis
LARGEST_HEADS = 64  # of a quantized cache: the rows that a warpgroup reduces
ALIGNMENT = 16  # bytes that TMA moves at least
LIMITS = (
    "Hopper GPUs (compute capability 9.0) with jax 0.11.2 or newer; keys and values of the cache's dtype, or a cache in float8 "
    "or int8 with at most 64 KV heads; head dims of whole 16 bytes up to 256, in 8 bits multiples of 16"
)


def supports(problem: WriteProblem) -> str | None:
    if not problem.values:
        return "it writes values, and this cache has none beside its keys"
    quantized = problem.scales_dtype is not None
    if not quantized and problem.dtype != problem.kv_dtype:
        return f"keys and values must have the cache's {problem.kv_dtype.name}, not {problem.dtype.name}"
    largest = LARGEST_HEADS if quantized else LARGEST_BOX
    if problem.kv_heads > largest:
        return f"there can be {largest} KV heads at most, not {problem.kv_heads}"
    if problem.head_dim * problem.kv_dtype.itemsize % ALIGNMENT or problem.head_dim > LARGEST_BOX:
        return f"a head must be a multiple of {ALIGNMENT} bytes and at most {LARGEST_BOX} numbers, not {problem.head_dim} numbers"
    return None
