"""The implementations of causal_conv1d, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels import hopper
from pallas_kernels.causal_conv1d import mosaic_gpu_support, xla
from pallas_kernels.causal_conv1d.problem import ConvProblem
from pallas_kernels.registry import Implementation, later
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


_compiled, _interpreted = hopper.implementations(
    later("pallas_kernels.causal_conv1d.mosaic_gpu", "causal_conv1d"),
    mosaic_gpu_support.LIMITS,
    mosaic_gpu_support.supports,
    interpreted="the tiny cases, on CPUs",
    suits=mosaic_gpu_support.suits,
)

IMPLEMENTATIONS: tuple[Implementation[CausalConv1d, ConvProblem], ...] = (
    _compiled,
    Implementation("xla", xla.causal_conv1d, limits="everything", checked="every case, on CPUs; not yet run on a GPU"),
    _interpreted,
)
NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
