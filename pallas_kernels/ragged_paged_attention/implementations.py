"""The implementations of ragged_paged_attention, preferred first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import jax

from pallas_kernels import hopper, native
from pallas_kernels.ragged_paged_attention import cpu_native, mosaic_gpu_support, triton_support, xla
from pallas_kernels.ragged_paged_attention.options import AttentionOptions
from pallas_kernels.ragged_paged_attention.problem import AttentionProblem
from pallas_kernels.registry import Implementation, everything, later

UNSPLIT = "mosaic_gpu_unsplit"
"""A token's result does not depend on the other rows of the batch, nor on how its row is cut into chunks."""


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
        options: AttentionOptions,
        kv_scales: jax.Array | None,
        sinks: jax.Array | None,
    ) -> jax.Array:
        """Attend."""
        ...


def _reading(
    options: tuple[str, ...], supports: Callable[[AttentionProblem], str | None] = everything
) -> Callable[[AttentionProblem], str | None]:
    """What an implementation supports that reads only these of `AttentionOptions`, and the scale."""

    def ask(problem: AttentionProblem) -> str | None:
        unread = [name for name in problem.options.asked if name not in options]
        return supports(problem) or (f"it does not compute {unread[0]}" if unread else None)

    return ask


_mosaic_gpu = later("pallas_kernels.ragged_paged_attention.mosaic_gpu", "ragged_paged_attention")
_mosaic_gpu_latent = later("pallas_kernels.ragged_paged_attention.mosaic_gpu_latent", "ragged_paged_attention")


def _with_latents(*arguments: Any, options: AttentionOptions, **others: Any) -> jax.Array:
    """The Hopper kernels: those for latents, or those for keys and values."""
    function = _mosaic_gpu if options.value_dim is None else _mosaic_gpu_latent
    attended: jax.Array = function(*arguments, options=options, **others)
    return attended


_compiled, _interpreted = hopper.implementations(
    _with_latents,
    mosaic_gpu_support.LIMITS,
    _reading(("window", "soft_cap", "value_dim"), mosaic_gpu_support.supports),
    interpreted="small batches, on CPUs",
)


def _named_only(problem: AttentionProblem) -> str | None:
    """The kernels above share the keys of a row among multiprocessors, which is faster."""
    return "it is for those who name it"


_unsplit, _unsplit_interpreted = (
    replace(entry, name=entry.name.replace("mosaic_gpu", UNSPLIT), suits=_named_only)
    for entry in hopper.implementations(
        later("pallas_kernels.ragged_paged_attention.mosaic_gpu", "attend_unsplit"),
        f"{mosaic_gpu_support.LIMITS.partition('; latents')[0]}; no latents",
        _reading(("window", "soft_cap"), mosaic_gpu_support.supports),
        interpreted="small batches, on CPUs",
    )
)

IMPLEMENTATIONS: tuple[Implementation[RaggedPagedAttention, AttentionProblem], ...] = (
    _compiled,
    Implementation(
        "triton",
        later("pallas_kernels.ragged_paged_attention.triton", "ragged_paged_attention"),
        limits=triton_support.LIMITS,
        checked="every dtype, interpreted; compiled for an A100 and a B200 without one; not yet run on a GPU",
        runs_on=triton_support.runs_on,
        supports=_reading(("window", "soft_cap"), triton_support.supports),
        for_target=True,
    ),
    Implementation(
        "cpu_native",
        cpu_native.ragged_paged_attention,
        limits=cpu_native.LIMITS,
        checked="every case, on CPUs",
        runs_on=native.runs_on,
        supports=_reading(("window", "soft_cap", "value_dim"), cpu_native.supports),
    ),
    Implementation(
        "xla",
        xla.ragged_paged_attention,
        limits="everything",
        checked="every case, on CPUs; golden checkpoints on an H200, in float32",
        supports=_reading(("window", "soft_cap", "value_dim")),
    ),
    _interpreted,
    _unsplit,
    _unsplit_interpreted,
)

NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
