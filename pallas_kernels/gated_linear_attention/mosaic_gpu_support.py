"""What the Mosaic GPU kernel of gated_linear_attention computes; asked before it is imported."""

from __future__ import annotations

from pallas_kernels.gated_linear_attention.problem import LinearProblem
from pallas_kernels.state_rows import few_tokens

COLUMNS = 32  # of a head's values, of a thread block
STATE_ROWS = 16  # of a state that a warp has side by side
LARGEST_KEY = 256  # numbers of a key: a thread has a quarter of as many of the state in registers
LIMITS = (
    "Hopper GPUs (compute capability 9.0) with jax 0.11.2 or newer; keys of a multiple of 16 numbers up to 256, values of a "
    "multiple of 32"
)


def supports(problem: LinearProblem) -> str | None:
    if problem.key_dim % STATE_ROWS or problem.key_dim > LARGEST_KEY:
        return f"keys must have a multiple of {STATE_ROWS} numbers and at most {LARGEST_KEY}, not {problem.key_dim}"
    if problem.value_dim % COLUMNS:
        return f"values must have a multiple of {COLUMNS} numbers, not {problem.value_dim}"
    return None


def suits(problem: LinearProblem) -> str | None:
    """Tokens of a row come one after the other: prompts are better multiplied by matrices."""
    return few_tokens(problem.tokens, problem.rows, problem.destinations)
