"""The implementations of ragged_paged_attention, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels.ragged_paged_attention import xla
from pallas_kernels.ragged_paged_attention.problem import AttentionProblem
from pallas_kernels.registry import Implementation


class RaggedPagedAttention(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(
        self,
        q: jax.Array,
        kv_pages: jax.Array,
        page_table: jax.Array,
        query_start: jax.Array,
        kv_length: jax.Array,
        *,
        layer: int,
        scale: float,
        kv_scales: jax.Array | None,
        window: int | None,
        soft_cap: float | None,
        sinks: jax.Array | None,
    ) -> jax.Array:
        """Attend."""
        ...


IMPLEMENTATIONS: tuple[Implementation[RaggedPagedAttention, AttentionProblem], ...] = (
    Implementation("xla", xla.ragged_paged_attention, limits="everything"),
)

NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
