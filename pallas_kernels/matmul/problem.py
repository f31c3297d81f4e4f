"""What implementations of matmul are chosen by: everything that tracing knows of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from pallas_kernels.matmul.packed import PackedMatrix


@dataclass(frozen=True, slots=True)
class MatmulProblem:
    """Shapes and dtype of a call.

    Attributes:
        rows, inputs, outputs: T, I, O.
        dtype: of the rows, and of a matrix that is not quantized.
        form: of the matrix; "plain" is [I, O].
        quantized: whether the matrix is of int8 with scales.
    """

    rows: int
    inputs: int
    outputs: int
    dtype: jnp.dtype
    form: Literal["plain", "panels", "rows"]
    quantized: bool = False

    @classmethod
    def of(cls, x: jax.Array, matrix: jax.Array | PackedMatrix) -> MatmulProblem:
        """The problem that arguments pose."""
        if isinstance(matrix, PackedMatrix):
            return cls(x.shape[0], x.shape[1], matrix.outputs, x.dtype, matrix.form, matrix.scales is not None)
        return cls(x.shape[0], x.shape[1], matrix.shape[1], x.dtype, "plain")
