"""matmul in float64: what every implementation is compared with."""

from __future__ import annotations

import numpy as np


def matmul(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """float64[T, O] of x[T, I] and a plain matrix [I, O], one sum after the other."""
    rows, columns = x.astype(np.float64), matrix.astype(np.float64).T
    return np.array([[np.sum(row * column) for column in columns] for row in rows])
