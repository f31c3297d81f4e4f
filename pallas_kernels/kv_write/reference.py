"""kv_write as a plain loop over tokens."""

from __future__ import annotations

import numpy as np


def kv_write(kv_pages: np.ndarray, k: np.ndarray, v: np.ndarray, slots: np.ndarray, *, layer: int) -> np.ndarray:
    """See api.py; numpy arrays in, a new numpy array out."""
    written = np.array(kv_pages)
    size = kv_pages.shape[4]
    for token, slot in enumerate(slots):
        page, offset = divmod(int(slot), size)
        written[layer, page, 0, :, offset] = k[token].astype(written.dtype)
        written[layer, page, 1, :, offset] = v[token].astype(written.dtype)
    return written
