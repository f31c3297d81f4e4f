"""The implementations of causal_conv1d, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels.causal_conv1d import xla
from pallas_kernels.causal_conv1d.problem import ConvProblem
from pallas_kernels.registry import Implementation
from pallas_kernels.state_rows import StateRows


class CausalConv1d(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(
        self,
        x: jax.Array,
        weight: jax.Array,
        bias: jax.Array | None,
        states: jax.Array,
        rows: StateRows,
        *,
        layer: int,
        silu: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """Convolve."""
        ...


IMPLEMENTATIONS: tuple[Implementation[CausalConv1d, ConvProblem], ...] = (
    Implementation("xla", xla.causal_conv1d, limits="everything", checked="every case, on CPUs; not yet run on a GPU"),
)
NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
