"""ragged_paged_attention as plain loops in float64: what every implementation is compared with."""

from __future__ import annotations

import numpy as np

from pallas_kernels.ragged_paged_attention.options import AttentionOptions


def ragged_paged_attention(
    q: np.ndarray,
    kv_pages: np.ndarray,
    page_table: np.ndarray,
    query_start: np.ndarray,
    kv_length: np.ndarray,
    *,
    layer: int,
    options: AttentionOptions,
    kv_scales: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """See api.py; numpy arrays in, float64 [T, H, D] or [T, H, value_dim] out."""
    window, chunk, soft_cap, value_dim = options.window, options.chunk, options.soft_cap, options.value_dim
    heads, kv_heads, size = q.shape[1], kv_pages.shape[3], kv_pages.shape[4]

    def stored(half: int, kv_head: int, keys: list[tuple[int, int]]) -> np.ndarray:
        vectors = np.array([kv_pages[layer, page, half, kv_head, slot] for page, slot in keys], np.float64)
        if kv_scales is None:
            return vectors
        return vectors * np.array([kv_scales[layer, page, half, kv_head, slot] for page, slot in keys], np.float64)[:, None]

    out = np.zeros((*q.shape[:2], value_dim or q.shape[2]), np.float64)
    for row, length in enumerate(kv_length):
        first, last = int(query_start[row]), int(query_start[row + 1])
        for token in range(first, last):
            position = int(length) - last + token
            start = 0 if window is None else max(0, position - window + 1)
            start = start if chunk is None else position - position % chunk
            keys = [(int(page_table[row, j // size]), j % size) for j in range(start, position + 1)]
            for head in range(heads):
                kv_head = head // (heads // kv_heads)
                k = stored(0, kv_head, keys)
                v = stored(1, kv_head, keys) if value_dim is None else k[:, :value_dim]
                scores = k @ q[token, head].astype(np.float64) * options.scale
                if soft_cap is not None:
                    scores = soft_cap * np.tanh(scores / soft_cap)
                sink = -np.inf if sinks is None else float(sinks[head])
                largest = max(float(scores.max()), sink)
                weights = np.exp(scores - largest)
                out[token, head] = weights @ v / (weights.sum() + np.exp(sink - largest))
    return out
