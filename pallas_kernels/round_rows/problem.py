"""What implementations of round_rows are chosen by: everything that tracing knows of a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp


@dataclass(frozen=True, slots=True)
class RoundProblem:
    """Shapes and dtypes of a call.

    Attributes:
        width: I, numbers of a row that are rounded together.
        dtype: of the rows before they are rounded.
    """

    width: int
    dtype: jnp.dtype


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * (scale + offset)."""

    eps: float
    offset: float


class Gate(NamedTuple):
    """What sums of E4M3 numbers are multiplied by: steps [T] of the rows, scales [s, 2F] of the outputs; float32."""

    steps: jax.Array
    scales: jax.Array


Activation = Callable[[jax.Array, jax.Array], jax.Array]
"""Of gate and up, float32 arrays of one shape; made of operations that kernels have, see `mosaic_gpu_support`."""
