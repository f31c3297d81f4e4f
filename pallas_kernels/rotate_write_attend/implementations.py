"""The implementations of rotate_write_attend, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels import hopper
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.registry import Implementation, later
from pallas_kernels.rotate_and_write import Rotation
from pallas_kernels.rotate_write_attend import mosaic_gpu_support
from pallas_kernels.rotate_write_attend.problem import RotateAttendProblem


class RotateWriteAttend(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(
        self,
        kv_pages: jax.Array,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array | None,
        rotation: Rotation,
        slots: jax.Array,
        page_table: jax.Array,
        query_start: jax.Array,
        kv_length: jax.Array,
        *,
        layer: int,
        options: AttentionOptions,
        sinks: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Rotate, write and attend; returns what was attended to, and the cache."""
        ...


_compiled, _interpreted = hopper.implementations(
    later("pallas_kernels.rotate_write_attend.mosaic_gpu", "rotate_write_attend"),
    mosaic_gpu_support.LIMITS,
    mosaic_gpu_support.supports,
    interpreted="small batches, on CPUs",
)

IMPLEMENTATIONS: tuple[Implementation[RotateWriteAttend, RotateAttendProblem], ...] = (
    _compiled,
    Implementation(
        "composed",
        later("pallas_kernels.rotate_write_attend.composed", "rotate_write_attend"),
        limits="everything",
        checked="every case, on CPUs; run on an H200 in bfloat16, against float64",
        for_target=True,
    ),
    _interpreted,
)

NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
