"""gated_linear_attention as plain loops over rows, tokens and heads, in float64: what every implementation is compared with."""

from __future__ import annotations

import numpy as np

from pallas_kernels.gated_linear_attention.problem import NORM_EPS, LinearOptions
from pallas_kernels.state_rows import StateRows, written


def gated_linear_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    decay: np.ndarray,
    beta: np.ndarray,
    states: np.ndarray,
    rows: StateRows,
    *,
    layer: int,
    options: LinearOptions,
) -> tuple[np.ndarray, np.ndarray]:
    """See api.py; numpy arrays in, float64 out. Tokens behind the last row give 0."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    if options.l2_norm:
        q, k = (array / np.sqrt((array**2).sum(-1, keepdims=True) + NORM_EPS) for array in (q, k))
    out, left = np.zeros(v.shape), states.astype(np.float64)
    group = v.shape[1] // q.shape[1]
    for row, source in enumerate(np.asarray(rows.source)):
        first, end = rows.query_start[row : row + 2]
        state = states[layer, source].astype(np.float64)
        for token in range(first, end):
            for head in range(v.shape[1]):
                key, value = k[token, head // group], v[token, head]
                faded = np.exp(np.float64(decay[token, head])) * state[head]
                new = value - key @ faded if options.delta else value
                state[head] = faded + beta[token, head] * np.outer(key, new)
                out[token, head] = options.scale * q[token, head // group] @ state[head]
            for after, to in written(rows, row, states.shape[1]):
                if token - first + 1 == after:
                    left[layer, to] = state
    return out, left
