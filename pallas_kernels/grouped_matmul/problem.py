"""What implementations of grouped_matmul are chosen by: everything that tracing knows of a call."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True, slots=True)
class GroupedProblem:
    """Shapes and dtypes of a call; axes as in api.py.

    Attributes:
        rows, groups, inputs, outputs: N, X, I, O.
        dtype: of the rows and the weights.
        expected_rows: how many of the rows are likely to have a group.
    """

    rows: int
    groups: int
    inputs: int
    outputs: int
    dtype: jnp.dtype
    result_dtype: jnp.dtype
    expected_rows: int

    @classmethod
    def of(cls, x: jax.Array, weights: jax.Array, result_dtype: jnp.dtype, expected_rows: int) -> GroupedProblem:
        groups, inputs, outputs = weights.shape
        return cls(x.shape[0], groups, inputs, outputs, x.dtype, result_dtype, expected_rows)
