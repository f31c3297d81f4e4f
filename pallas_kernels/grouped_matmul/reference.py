"""grouped_matmul as a plain loop over rows, in float64: what every implementation is compared with."""

from __future__ import annotations

import numpy as np


def grouped_matmul(x: np.ndarray, weights: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
    """See api.py; numpy arrays in, float64 [N, O] out."""
    out = np.zeros((x.shape[0], weights.shape[2]), np.float64)
    row = 0
    for group, size in enumerate(group_sizes):
        for _ in range(int(size)):
            out[row] = x[row].astype(np.float64) @ weights[group].astype(np.float64)
            row += 1
    return out
