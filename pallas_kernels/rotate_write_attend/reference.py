"""rotate_write_attend as its two halves, one after the other, which are plain loops in float64."""

from __future__ import annotations

import numpy as np

from pallas_kernels.ragged_paged_attention import reference as attention
from pallas_kernels.ragged_paged_attention.options import AttentionOptions
from pallas_kernels.rotate_and_write import reference as rotate


def rotate_write_attend(
    kv_pages: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    slots: np.ndarray,
    page_table: np.ndarray,
    query_start: np.ndarray,
    kv_length: np.ndarray,
    *,
    layer: int,
    options: AttentionOptions,
    sinks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """See api.py; numpy arrays in, new numpy arrays out: the result [T, H, D] in float64, and the cache.

    Rotated queries are rounded to their own dtype.
    """
    rotated, kv_pages = rotate.rotate_and_write(kv_pages, q, k, v, cos, sin, slots, layer=layer)
    attended = attention.ragged_paged_attention(
        rotated.astype(q.dtype), kv_pages, page_table, query_start, kv_length, layer=layer, options=options, sinks=sinks
    )
    return attended, kv_pages
