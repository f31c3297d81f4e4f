"""rotate_and_write as a plain loop over tokens and heads, in float64."""

from __future__ import annotations

import numpy as np

from pallas_kernels.kv_write import reference as write


def rotate_and_write(
    kv_pages: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray | None,
    cos: np.ndarray,
    sin: np.ndarray,
    slots: np.ndarray,
    *,
    layer: int,
) -> tuple[np.ndarray, np.ndarray]:
    """See api.py; numpy arrays in, new numpy arrays out: queries [T, H, D] in float64, and the cache."""
    keys = _rotated(k, cos, sin).astype(k.dtype)
    return _rotated(q, cos, sin), write.kv_write(kv_pages, None, keys, v, slots, layer=layer)[0]


def _rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """A pair of dimensions is a complex number, and the rotation a product with another one."""
    half, rotated = cos.shape[1], x.astype(np.float64)
    for token in range(x.shape[0]):
        for pair in range(half):
            turn = complex(cos[token, pair], sin[token, pair])
            for head in range(x.shape[1]):
                turned = complex(*rotated[token, head, [pair, half + pair]]) * turn
                rotated[token, head, [pair, half + pair]] = turned.real, turned.imag
    return rotated
