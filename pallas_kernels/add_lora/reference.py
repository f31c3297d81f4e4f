"""add_lora as a plain loop over rows, in float64: what every implementation is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def add_lora(y: np.ndarray, x: np.ndarray, a: np.ndarray, b: Sequence[np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """See api.py; numpy arrays in, float64 [N, O] out. What comes of A is rounded to x's dtype."""
    out = y.astype(np.float64)
    row = 0
    for slot, count in enumerate(tokens):
        for _ in range(int(count)):
            shrunk = (a[slot].astype(np.float64) @ x[row].astype(np.float64)).astype(x.dtype).astype(np.float64)
            parts = zip(np.split(shrunk, len(b)), b, strict=True)
            out[row] += np.concatenate([part @ matrix[slot].astype(np.float64) for part, matrix in parts])
            row += 1
    return out
