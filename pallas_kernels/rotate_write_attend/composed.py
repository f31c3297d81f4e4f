"""rotate_write_attend as rotate_and_write and then ragged_paged_attention, each in what suits the target."""

from __future__ import annotations

import jax

from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention
from pallas_kernels.registry import Target
from pallas_kernels.rotate_and_write import Rotation, rotate_and_write


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
    sinks: jax.Array | None,
    target: Target,
) -> tuple[jax.Array, jax.Array]:
    """See api.py."""
    q, kv_pages = rotate_and_write(kv_pages, q, k, v, rotation, slots, layer=layer, target=target)
    attended = ragged_paged_attention(
        q.astype(kv_pages.dtype),
        kv_pages,
        page_table,
        query_start,
        kv_length,
        layer=layer,
        options=options,
        sinks=sinks,
        target=target,
    )
    return attended, kv_pages
