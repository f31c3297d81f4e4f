"""The implementations of lightning_index, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels.lightning_index import xla
from pallas_kernels.lightning_index.problem import IndexOptions, IndexProblem
from pallas_kernels.registry import Implementation


class LightningIndex(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(
        self,
        q: jax.Array,
        weights: jax.Array,
        kv_pages: jax.Array,
        page_table: jax.Array,
        query_start: jax.Array,
        kv_length: jax.Array,
        *,
        layer: int,
        options: IndexOptions,
        kv_scales: jax.Array | None,
    ) -> jax.Array:
        """Choose."""
        ...


IMPLEMENTATIONS: tuple[Implementation[LightningIndex, IndexProblem], ...] = (
    Implementation(
        "xla",
        xla.lightning_index,
        limits="everything",
        checked="every case, on CPUs; compiled for an H100 without one; not yet run on a GPU",
    ),
)
NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
