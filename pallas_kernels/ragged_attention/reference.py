"""ragged_attention as plain loops over rows and heads, in float64: what every implementation is compared with."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pallas_kernels.ragged_paged_attention import AttentionOptions


def ragged_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, query_start: np.ndarray, *, options: AttentionOptions
) -> np.ndarray:
    """See api.py; numpy arrays in, float64 [T, H, D] out."""
    out, group = np.zeros(q.shape), q.shape[1] // k.shape[1]
    for first, end in pairwise(query_start):
        places = np.arange(end - first)
        near = np.abs(places[:, None] - places[None]) < (options.window or np.inf)
        for head in range(q.shape[1]):
            keys, values = (array[first:end, head // group].astype(np.float64) for array in (k, v))
            scores = q[first:end, head].astype(np.float64) @ keys.T * options.scale
            if options.soft_cap is not None:
                scores = options.soft_cap * np.tanh(scores / options.soft_cap)
            weights = np.where(near, np.exp(scores - scores.max(axis=-1, keepdims=True, where=near, initial=-np.inf)), 0.0)
            out[first:end, head] = weights / weights.sum(-1, keepdims=True) @ values
    return out
