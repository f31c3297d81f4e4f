"""What the Mosaic GPU kernel of rotate_and_write computes; asked before it is imported."""

from __future__ import annotations

from math import gcd

from pallas_kernels.rotate_and_write.problem import RotateProblem

LARGEST_BOX = 256  # elements that TMA moves along one axis
ALIGNMENT = 16  # bytes that TMA moves at least
WHOLE = 128  # bytes: a load is a multiple of them, and what TMA stores begins at one
VECTOR = 8  # columns of a thread, of which two at least are side by side
LIMITS = (
    "Hopper GPUs (compute capability 9.0) with jax 0.11.2 or newer; queries, keys and values of the cache's dtype; head dims of "
    "whole 16 bytes up to 256, of which a multiple of 32 is rotated; at most 256 heads of queries and keys, of whole 128 "
    "bytes"
)


def supports(problem: RotateProblem) -> str | None:
    if not problem.values:
        return "it writes values, and this cache has none beside its keys"
    if problem.dtype != problem.kv_dtype:
        return f"queries, keys and values must have the cache's {problem.kv_dtype.name}, not {problem.dtype.name}"
    if problem.heads + problem.kv_heads > LARGEST_BOX:
        return f"there can be {LARGEST_BOX} heads of queries and keys at most, not {problem.heads + problem.kv_heads}"
    if problem.rotated_dims % (4 * VECTOR):
        return f"the rotated dimensions must be a multiple of {4 * VECTOR}, not {problem.rotated_dims}"
    if problem.head_dim * problem.kv_dtype.itemsize % ALIGNMENT or problem.head_dim > LARGEST_BOX:
        return f"a head must be a multiple of {ALIGNMENT} bytes and at most {LARGEST_BOX} numbers, not {problem.head_dim} numbers"
    every, values = problem.heads + 2 * problem.kv_heads, problem.kv_heads * problem.head_dim * problem.dtype.itemsize
    if problem.heads % _whole_heads(problem) or values % WHOLE or loaded_heads(problem) > every:
        return f"{problem.heads} and {problem.kv_heads} heads of {problem.head_dim} numbers are not whole {WHOLE} bytes"
    return None


def loaded_heads(problem: RotateProblem) -> int:
    """How many heads are loaded in halves: those of queries and keys, and as many of values as make the loads whole."""
    step = _whole_heads(problem)
    return -(-(problem.heads + problem.kv_heads) // step) * step


def _whole_heads(problem: RotateProblem) -> int:
    """How many halves are whole 128 bytes, and how many remainders that are not rotated."""
    half, rest = problem.rotated_dims // 2, problem.head_dim - problem.rotated_dims
    return WHOLE // gcd(WHOLE, gcd(half, rest) * problem.dtype.itemsize)
