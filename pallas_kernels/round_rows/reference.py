"""What is rounded, as plain loops over rows, in float64; numpy arrays in, new ones out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def normed(
    x: np.ndarray, added: np.ndarray | None, scale: np.ndarray, eps: float, offset: float
) -> tuple[np.ndarray, np.ndarray]:
    """The sum of x and added, in their dtype, and the norm of that, in float64."""
    total, rows = x.copy(), np.zeros(x.shape)
    for token in range(x.shape[0]):
        if added is not None:
            total[token] = (x[token].astype(np.float64) + added[token].astype(np.float64)).astype(x.dtype)
        row = total[token].astype(np.float64)
        rows[token] = row / np.sqrt(np.mean(row**2) + eps) * (scale.astype(np.float64) + offset)
    return total, rows


def gated(
    sums: np.ndarray, steps: np.ndarray, scales: np.ndarray, activation: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """The gate's rows [T, s, F] in float64."""
    width = sums.shape[-1] // 2
    rows = np.zeros((*sums.shape[:-1], width))
    for token, shard in np.ndindex(*rows.shape[:2]):
        scaled = sums[token, shard].astype(np.float64) * float(steps[token]) * scales[shard].astype(np.float64)
        rows[token, shard] = activation(scaled[:width], scaled[width:])
    return rows
