"""The implementations of ragged_attention, preferred first."""

from __future__ import annotations

from typing import Protocol

import jax

from pallas_kernels import native
from pallas_kernels.ragged_attention import cpu_native, xla
from pallas_kernels.ragged_attention.problem import RaggedProblem
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.registry import Implementation


class RaggedAttention(Protocol):
    """The operation after its arguments were checked; see api.py."""

    def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array, query_start: jax.Array, options: AttentionOptions) -> jax.Array:
        """Attend."""
        ...


IMPLEMENTATIONS: tuple[Implementation[RaggedAttention, RaggedProblem], ...] = (
    Implementation(
        "cpu_native",
        cpu_native.ragged_attention,
        limits=cpu_native.LIMITS,
        checked="every case, on CPUs",
        runs_on=native.runs_on,
        supports=cpu_native.supports,
    ),
    Implementation("xla", xla.ragged_attention, limits="everything", checked="every case, on CPUs; not yet run on a GPU"),
)
