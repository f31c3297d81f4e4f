"""What the Mosaic GPU kernel of causal_conv1d computes; asked before it is imported."""

from __future__ import annotations

from pallas_kernels.causal_conv1d.problem import ConvProblem
from pallas_kernels.state_rows import few_tokens

THREADS = 128  # of a thread block
MOST_TAPS = 8  # what a thread keeps of each of its channels
LIMITS = (
    f"Hopper GPUs (compute capability 9.0) with jax 0.11.2 or newer; a multiple of 128 channels, and at most {MOST_TAPS} taps"
)


def supports(problem: ConvProblem) -> str | None:
    if problem.channels % THREADS:
        return f"there must be a multiple of {THREADS} channels, not {problem.channels}"
    if problem.width > MOST_TAPS:
        return f"there can be {MOST_TAPS} taps at most, not {problem.width}"
    return None


def suits(problem: ConvProblem) -> str | None:
    """Tokens of a row come one after the other: those of a prompt are better computed at once."""
    return few_tokens(problem.tokens, problem.rows, problem.destinations)


def neighbours(channels: int) -> int:
    """How many neighbouring channels a thread has: two, so that a warp moves whole lines of 16 bits, where they divide."""
    return 2 if channels % (2 * THREADS) == 0 else 1
