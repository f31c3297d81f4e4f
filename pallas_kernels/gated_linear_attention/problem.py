"""What gated_linear_attention computes, and what its implementations are chosen by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp


class LinearOptions(NamedTuple):
    """Which recurrence.

    Attributes:
        delta: whether what the state already predicts for a key is taken from its value first (the delta rule).
        scale: multiplies the queries.
        l2_norm: whether queries and keys are divided by their length first.
    """

    delta: bool
    scale: float = 1.0
    l2_norm: bool = False


NORM_EPS = 1e-6  # added to the squared length of queries and keys


@dataclass(frozen=True, slots=True)
class LinearProblem:
    """A call; axes as in api.py.

    Attributes:
        dtype: of q, k and v.
        tokens, rows, key_heads, heads, key_dim, value_dim: T, R, K, H, D, V.
        options: which recurrence.
    """

    dtype: jnp.dtype
    tokens: int
    rows: int
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    options: LinearOptions
