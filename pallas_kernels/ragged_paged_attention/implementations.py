"""The implementations of ragged_paged_attention, preferred first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax

from pallas_kernels import hopper, native
from pallas_kernels.ragged_paged_attention import cpu_native, mosaic_gpu_support, triton_support, xla
from pallas_kernels.ragged_paged_attention.problem import AttentionProblem
from pallas_kernels.registry import Implementation, later


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
        value_dim: int | None,
    ) -> jax.Array:
        """Attend."""
        ...


def _with_values(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """An implementation that knows only caches with values: its `supports` has refused the others."""

    def attend(*arguments: Any, value_dim: None, **options: Any) -> jax.Array:
        return function(*arguments, **options)

    return attend


def _without_scales(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """An implementation that knows no quantized caches, likewise."""

    def attend(*arguments: Any, kv_scales: None, **options: Any) -> jax.Array:
        return function(*arguments, **options)

    return attend


_mosaic_gpu = _with_values(later("pallas_kernels.ragged_paged_attention.mosaic_gpu", "ragged_paged_attention"))
_triton = _with_values(later("pallas_kernels.ragged_paged_attention.triton", "ragged_paged_attention"))
_compiled, _interpreted = hopper.implementations(
    _mosaic_gpu, mosaic_gpu_support.LIMITS, mosaic_gpu_support.supports, interpreted="small batches, on CPUs"
)

IMPLEMENTATIONS: tuple[Implementation[RaggedPagedAttention, AttentionProblem], ...] = (
    _compiled,
    Implementation(
        "triton",
        _triton,
        limits=triton_support.LIMITS,
        checked="by hand: compiled for an A100 without one, interpreted; not yet run on a GPU",
        runs_on=triton_support.runs_on,
        supports=triton_support.supports,
        suits=triton_support.suits,
    ),
    Implementation(
        "cpu_native",
        _without_scales(cpu_native.ragged_paged_attention),
        limits=cpu_native.LIMITS,
        checked="every case, on CPUs",
        runs_on=native.runs_on,
        supports=cpu_native.supports,
    ),
    Implementation("xla", xla.ragged_paged_attention, limits="everything", checked="every case, on CPUs; not yet run on a GPU"),
    _interpreted,
)

NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
