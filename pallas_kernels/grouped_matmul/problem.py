"""What implementations of grouped_matmul are chosen by: everything that tracing knows of a call."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels.matmul import Matrix, Weight
from pallas_kernels.quantization import Float8Weight, FourBit


@dataclass(frozen=True, slots=True)
class GroupedProblem:
    """Shapes and dtypes of a call; axes as in api.py.

    Attributes:
        rows, groups, inputs, outputs: N, X, I, O.
        dtype: of the rows, and of weights that are not quantized.
        expected_rows: how many of the rows are likely to have a group.
        layout, scheme: names of the weights'.
        codes: a scheme that has more to say than its name; None for others.
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
    codes: FourBit | Float8Weight | None = None

    @classmethod
    def of(cls, x: jax.Array, weights: Weight, result_dtype: jnp.dtype, expected_rows: int) -> GroupedProblem:
        if isinstance(weights, Matrix):
            groups, scheme = weights.shape[0], weights.scheme
            codes = scheme if isinstance(scheme, FourBit | Float8Weight) else None
            inputs, outputs, layout = weights.inputs, weights.outputs, weights.layout.name
            return cls(x.shape[0], groups, inputs, outputs, x.dtype, result_dtype, expected_rows, layout, scheme.name, codes)
        groups, inputs, outputs = weights.shape
        return cls(x.shape[0], groups, inputs, outputs, x.dtype, result_dtype, expected_rows)
