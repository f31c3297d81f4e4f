"""The implementations of rotate_and_write, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels import hopper
from pallas_kernels.registry import Implementation, later
from pallas_kernels.rotate_and_write import mosaic_gpu_support, xla
from pallas_kernels.rotate_and_write.problem import RotateProblem
from pallas_kernels.rotate_and_write.rotation import Rotation


class RotateAndWrite(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(
        self,
        kv_pages: jax.Array,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array | None,
        rotation: Rotation,
        slots: jax.Array,
        *,
        layer: int,
    ) -> tuple[jax.Array, jax.Array]:
        """Rotate and write; returns queries and cache."""
        ...


_compiled, _interpreted = hopper.implementations(
    later("pallas_kernels.rotate_and_write.mosaic_gpu", "rotate_and_write"),
    mosaic_gpu_support.LIMITS,
    mosaic_gpu_support.supports,
    interpreted="every case, on CPUs",
)

IMPLEMENTATIONS: tuple[Implementation[RotateAndWrite, RotateProblem], ...] = (
    _compiled,
    Implementation("xla", xla.rotate_and_write, limits="everything", checked="every case, on CPUs; not yet run on a GPU"),
    _interpreted,
)

NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
