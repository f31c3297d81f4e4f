"""What the Mosaic GPU kernel of round_rows computes; asked before it is imported."""

from __future__ import annotations

import jax.numpy as jnp

from pallas_kernels.round_rows.problem import RoundProblem

THREADS = 128  # of a thread block, which has a row
FEWEST, MOST = 2, 8  # neighbouring numbers of a thread: E4M3 is made two by two, and a load is 16 bytes at most
WIDEST = 16384  # numbers of a row, which all are in registers
LIMITS = (
    "Hopper GPUs (compute capability 9.0) with jax 0.11.2 or newer; rows in bfloat16 of a multiple of 256 numbers, at most 16384"
)


def supports(problem: RoundProblem) -> str | None:
    if problem.dtype != jnp.bfloat16:
        return f"rows must be bfloat16, not {problem.dtype.name}"
    if problem.width % (THREADS * FEWEST) or problem.width > WIDEST:
        return f"a row must have a multiple of {THREADS * FEWEST} numbers, at most {WIDEST}, not {problem.width}"
    return None


def neighbours(width: int) -> int:
    """How many neighbouring numbers a thread has."""
    return next(count for count in (MOST, MOST // 2, FEWEST) if width % (THREADS * count) == 0)
