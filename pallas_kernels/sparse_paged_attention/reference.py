"""sparse_paged_attention as plain loops in float64: what every implementation is compared with."""

from __future__ import annotations

import numpy as np

from pallas_kernels.ragged_paged_attention import AttentionOptions


def sparse_paged_attention(
    q: np.ndarray,
    positions: np.ndarray,
    kv_pages: np.ndarray,
    page_table: np.ndarray,
    query_start: np.ndarray,
    kv_length: np.ndarray,
    *,
    layer: int,
    options: AttentionOptions,
    kv_scales: np.ndarray | None = None,
) -> np.ndarray:
    """See api.py; numpy arrays in, float64 [T, H, value_dim] out."""
    tokens, heads, dim = q.shape
    size, value_dim = kv_pages.shape[4], options.value_dim
    out = np.zeros((tokens, heads, value_dim or dim))
    for row in range(len(kv_length)):
        for token in range(query_start[row], query_start[row + 1]):
            keys = []
            for position in positions[token]:
                if position < 0:
                    break
                place = layer, page_table[row, position // size], 0, 0, position % size
                scale = 1.0 if kv_scales is None else float(kv_scales[place])
                keys.append(kv_pages[place][:dim].astype(np.float64) * scale)
            for head in range(heads):
                scores = np.array(keys) @ q[token, head].astype(np.float64) * options.scale
                shares = np.exp(scores - scores.max())
                out[token, head] = shares / shares.sum() @ np.array(keys)[:, :value_dim]
    return out
