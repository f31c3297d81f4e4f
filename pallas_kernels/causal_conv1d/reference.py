"""causal_conv1d as plain loops over rows and tokens, in float64: what every implementation is compared with."""

from __future__ import annotations

import numpy as np

from pallas_kernels.state_rows import StateRows, written


def causal_conv1d(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, states: np.ndarray, rows: StateRows, *, layer: int, silu: bool
) -> tuple[np.ndarray, np.ndarray]:
    """See api.py; numpy arrays in, float64 out. Tokens behind the last row give 0."""
    out, left, width = np.zeros(x.shape), states.copy(), len(weight)
    for row, source in enumerate(np.asarray(rows.source)):
        first, end = rows.query_start[row : row + 2]
        inputs = np.concatenate([states[layer, source], x[first:end]])
        for token in range(first, end):
            seen = inputs[token - first : token - first + width].astype(np.float64)
            total = (seen * weight.astype(np.float64)).sum(axis=0) + (0 if bias is None else bias.astype(np.float64))
            out[token] = total / (1 + np.exp(-total)) if silu else total
        for after, to in written(rows, row, states.shape[1]):
            left[layer, to] = inputs[after : after + width - 1]
    return out, left
