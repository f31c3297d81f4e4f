"""What the Mosaic GPU kernel of gated_linear_attention computes; asked before it is imported."""

from __future__ import annotations

from pallas_kernels.gated_linear_attention.problem import LinearProblem

WARPS = 4  # of a thread block
STATE_ROWS = 16  # of a state, that a warp has side by side
MOST_COLUMNS, FEWEST_COLUMNS = 32, 16  # of a head's values, of a thread block
SHORT = 32  # tokens of a row at most, beside longer ones: a chunk of 64 by matrices takes about as long as so many
LARGEST_KEY = 256  # numbers of a key: a thread has a quarter of as many of the state in registers
LIMITS = (
    "Hopper GPUs (compute capability 9.0) with jax 0.11.2 or newer; keys and values of a multiple of 16 numbers, keys of at most "
    "256"
)


def supports(problem: LinearProblem) -> str | None:
    if problem.key_dim % STATE_ROWS or problem.key_dim > LARGEST_KEY:
        return f"keys must have a multiple of {STATE_ROWS} numbers and at most {LARGEST_KEY}, not {problem.key_dim}"
    if problem.value_dim % FEWEST_COLUMNS:
        return f"values must have a multiple of {FEWEST_COLUMNS} numbers, not {problem.value_dim}"
    return None


def block_columns(value_dim: int) -> int:
    """How many columns of a head's values a thread block has."""
    return MOST_COLUMNS if value_dim % MOST_COLUMNS == 0 else FEWEST_COLUMNS
