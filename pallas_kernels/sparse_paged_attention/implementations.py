"""The implementations of sparse_paged_attention, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.registry import Implementation
from pallas_kernels.sparse_paged_attention import xla
from pallas_kernels.sparse_paged_attention.problem import SparseProblem


class SparsePagedAttention(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(
        self,
        q: jax.Array,
        positions: jax.Array,
        kv_pages: jax.Array,
        page_table: jax.Array,
        query_start: jax.Array,
        kv_length: jax.Array,
        *,
        layer: int,
        options: AttentionOptions,
        kv_scales: jax.Array | None,
    ) -> jax.Array:
        """Attend."""
        ...


IMPLEMENTATIONS: tuple[Implementation[SparsePagedAttention, SparseProblem], ...] = (
    Implementation(
        "xla",
        xla.sparse_paged_attention,
        limits="everything",
        checked="every case, on CPUs; compiled for an H100 without one; not yet run on a GPU",
    ),
)
NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
