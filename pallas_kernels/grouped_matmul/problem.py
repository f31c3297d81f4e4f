"""What implementations of grouped_matmul are chosen by: everything that tracing knows of a call."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels.matmul import Matrix, Weight


@dataclass(frozen=True, slots=True)
class GroupedProblem:
    """Shapes and dtypes of a call; axes as in api.py.

    Attributes:
        rows, groups, inputs, outputs: N, X, I, O.
        dtype: of the rows, and of weights that are not quantized.
        expected_rows: how many of the rows are likely to have a group.
        layout, scheme: names of the weights'.
    """

    rows: int
    groups: int
    inputs: int
    outputs: int
    dtype: jnp.dtype
    result_dtype: jnp.dtype
    expected_rows: int
    layout: str = "plain"
    scheme: str = "none"

    @classmethod
    def of(cls, x: jax.Array, weights: Weight, result_dtype: jnp.dtype, expected_rows: int) -> GroupedProblem:
        layout, scheme = "plain", "none"
        if isinstance(weights, Matrix):
            groups, inputs, outputs = weights.shape[0], weights.inputs, weights.outputs
            layout, scheme = weights.layout.name, weights.scheme.name
        else:
            groups, inputs, outputs = weights.shape
        return cls(x.shape[0], groups, inputs, outputs, x.dtype, result_dtype, expected_rows, layout, scheme)
