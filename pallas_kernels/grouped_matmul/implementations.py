"""The implementations of grouped_matmul, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp

from pallas_kernels import hopper, native
from pallas_kernels.grouped_matmul import cpu_native, mosaic_gpu_support, xla
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.matmul import Weight
from pallas_kernels.registry import Implementation, later


class GroupedMatmul(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(
        self, x: jax.Array, weights: Weight, group_sizes: jax.Array, *, dtype: jnp.dtype, expected_rows: int
    ) -> jax.Array:
        """Multiply."""
        ...


_mosaic_gpu = later("pallas_kernels.grouped_matmul.mosaic_gpu", "grouped_matmul")
_compiled, _interpreted = hopper.implementations(
    _mosaic_gpu, mosaic_gpu_support.LIMITS, mosaic_gpu_support.supports, interpreted="small groups, on CPUs"
)

IMPLEMENTATIONS: tuple[Implementation[GroupedMatmul, GroupedProblem], ...] = (
    _compiled,
    Implementation(
        "cpu_native",
        cpu_native.grouped_matmul,
        limits=cpu_native.LIMITS,
        checked="every case, on CPUs",
        runs_on=native.runs_on,
        supports=cpu_native.supports,
    ),
    Implementation(
        "xla", xla.grouped_matmul, limits="everything", checked="every case, on CPUs; golden checkpoints on an H200, in float32"
    ),
    _interpreted,
)

NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
