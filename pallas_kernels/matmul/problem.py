"""What implementations of matmul are chosen by: everything that tracing knows of a call."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels.matmul.matrix import Matrix
from pallas_kernels.quantization import Float8Weight, FourBit
from pallas_kernels.round_rows import Rounded


@dataclass(frozen=True, slots=True)
class MatmulProblem:
    """Shapes, dtype, layout and numbers of a call.

    Attributes:
        rows, inputs, outputs: T, I, O.
        dtype: of the rows, and of a matrix that is not quantized.
        layout, scheme: names of the matrix's.
        codes: a scheme with groups, which has more to say than its name; None for others.
    """

    rows: int
    inputs: int
    outputs: int
    dtype: jnp.dtype
    layout: str
    scheme: str = "none"
    codes: FourBit | Float8Weight | None = None

    @classmethod
    def of(cls, x: jax.Array | Rounded, matrix: Matrix) -> MatmulProblem:
        scheme = matrix.scheme
        codes = scheme if isinstance(scheme, FourBit | Float8Weight) else None
        return cls(x.shape[0], matrix.inputs, matrix.outputs, x.dtype, matrix.layout.name, scheme.name, codes)
