"""The implementations of grouped_matmul, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp

from pallas_kernels.grouped_matmul import xla
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.registry import Implementation


class GroupedMatmul(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(self, x: jax.Array, weights: jax.Array, group_sizes: jax.Array, *, dtype: jnp.dtype) -> jax.Array:
        """Multiply."""
        ...


IMPLEMENTATIONS: tuple[Implementation[GroupedMatmul, GroupedProblem], ...] = (
    Implementation("xla", xla.grouped_matmul, limits="everything", checked="every case, on CPUs; not yet run on a GPU"),
)

NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
