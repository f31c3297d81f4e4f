"""rotate_write_attend: what a layer does with one step's queries, keys and values, from before the rotation to the attention."""

from __future__ import annotations

import jax

from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.ragged_paged_attention.api import check_arguments as check_attention
from pallas_kernels.ragged_paged_attention.problem import AttentionProblem
from pallas_kernels.registry import Target, choose
from pallas_kernels.rotate_and_write import Rotation
from pallas_kernels.rotate_and_write.api import check_arguments as check_rotation
from pallas_kernels.rotate_and_write.problem import RotateProblem
from pallas_kernels.rotate_write_attend.implementations import IMPLEMENTATIONS
from pallas_kernels.rotate_write_attend.problem import RotateAttendProblem


def rotate_write_attend(
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
    sinks: jax.Array | None = None,
    implementation: str | None = None,
    target: Target | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Do what `rotate_and_write` does, then what `ragged_paged_attention` does with the rotated queries and the written cache.

    Args:
        kv_pages, q, k, v, rotation, slots, layer: as of `rotate_and_write`. `slots` are where the page table has the tokens.
        page_table, query_start, kv_length, options, sinks: as of `ragged_paged_attention`. With no more tokens than rows, no
            row's pages may hold a slot of another row: a kernel reads pages while others are written.
        implementation: a name from `implementations.py`, or None to pick by target, shapes and dtypes.
        target: the device that the program is for; the default device unless given.

    Returns:
        [T, H, D], or [T, H, options.value_dim], in the cache's dtype, 0 for padding tokens; and the cache with those slots
        replaced.

    Raises:
        ValueError, TypeError: as of either.
    """
    check_rotation(kv_pages, q, k, v, rotation, slots, layer)
    check_attention(q, kv_pages, page_table, query_start, kv_length, layer=layer, options=options, kv_scales=None, sinks=sinks)
    problem = RotateAttendProblem(
        RotateProblem.of(kv_pages, q, rotation),
        AttentionProblem.of(q, kv_pages, page_table, options=options, kv_scales=None, sinks=sinks),
    )
    run = choose("rotate_write_attend", IMPLEMENTATIONS, implementation, target, problem)
    rows = (page_table, query_start, kv_length)
    return run(kv_pages, q, k, v, rotation, slots, *rows, layer=layer, options=options, sinks=sinks)
