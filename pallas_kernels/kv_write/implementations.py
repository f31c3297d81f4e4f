"""The implementations of kv_write, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels import hopper
from pallas_kernels.kv_write import mosaic_gpu_support, xla
from pallas_kernels.kv_write.problem import WriteProblem
from pallas_kernels.registry import Implementation, later


class KvWrite(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(
        self, kv_pages: jax.Array, kv_scales: jax.Array | None, k: jax.Array, v: jax.Array | None, slots: jax.Array, *, layer: int
    ) -> tuple[jax.Array, jax.Array | None]:
        """Write; returns both caches."""
        ...


_mosaic_gpu = later("pallas_kernels.kv_write.mosaic_gpu", "kv_write")
_compiled, _interpreted = hopper.implementations(
    _mosaic_gpu, mosaic_gpu_support.LIMITS, mosaic_gpu_support.supports, interpreted="the tiny cases, on CPUs"
)

IMPLEMENTATIONS: tuple[Implementation[KvWrite, WriteProblem], ...] = (
    # First until the other is measured on a GPU: its scatter is in place too.
    Implementation("xla", xla.kv_write, limits="everything", checked="every case, on CPUs; not yet run on a GPU"),
    _compiled,
    _interpreted,
)

NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
