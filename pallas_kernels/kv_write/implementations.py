"""The implementations of kv_write, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels.kv_write import xla
from pallas_kernels.kv_write.problem import WriteProblem
from pallas_kernels.registry import Implementation


class KvWrite(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(
        self, kv_pages: jax.Array, kv_scales: jax.Array | None, k: jax.Array, v: jax.Array, slots: jax.Array, *, layer: int
    ) -> tuple[jax.Array, jax.Array | None]:
        """Write; returns both caches."""
        ...


IMPLEMENTATIONS: tuple[Implementation[KvWrite, WriteProblem], ...] = (Implementation("xla", xla.kv_write, limits="everything"),)

NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
