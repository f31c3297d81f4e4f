"""The implementations of gated_linear_attention, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels import hopper, native
from pallas_kernels.gated_linear_attention import cpu_native, mosaic_gpu_support, xla
from pallas_kernels.gated_linear_attention.problem import LinearOptions, LinearProblem
from pallas_kernels.registry import Implementation, later
from pallas_kernels.state_rows import StateRows


class GatedLinearAttention(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        decay: jax.Array,
        beta: jax.Array,
        states: jax.Array,
        rows: StateRows,
        *,
        layer: int,
        options: LinearOptions,
    ) -> tuple[jax.Array, jax.Array]:
        """Attend."""
        ...


_compiled, _interpreted = hopper.implementations(
    later("pallas_kernels.gated_linear_attention.mosaic_gpu", "gated_linear_attention"),
    mosaic_gpu_support.LIMITS,
    mosaic_gpu_support.supports,
    interpreted="the tiny cases, on CPUs",
)

IMPLEMENTATIONS: tuple[Implementation[GatedLinearAttention, LinearProblem], ...] = (
    _compiled,
    Implementation(
        "cpu_native",
        cpu_native.gated_linear_attention,
        limits=cpu_native.LIMITS,
        checked="every case, on CPUs",
        runs_on=native.runs_on,
        supports=cpu_native.supports,
    ),
    Implementation("xla", xla.gated_linear_attention, limits="everything", checked="every case, on CPUs; not yet run on a GPU"),
    _interpreted,
)
NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
