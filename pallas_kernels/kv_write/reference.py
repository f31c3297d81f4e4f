"""kv_write as a plain loop over tokens."""

from __future__ import annotations

import numpy as np

from pallas_kernels.kv_write.quantize import SMALLEST_SCALE, largest_number


def kv_write(
    kv_pages: np.ndarray, kv_scales: np.ndarray | None, k: np.ndarray, v: np.ndarray | None, slots: np.ndarray, *, layer: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """See api.py; numpy arrays in, new numpy arrays out. Quantization is in float64."""
    written = np.array(kv_pages)
    scales = None if kv_scales is None else np.array(kv_scales)
    size = kv_pages.shape[4]
    for token, slot in enumerate(slots):
        page, offset = divmod(int(slot), size)
        for half, source in enumerate((k,) if v is None else (k, v)):
            for head, vector in enumerate(source[token]):
                if scales is not None:
                    vector = vector.astype(np.float64)
                    scale = max(np.abs(vector).max() / largest_number(written.dtype), SMALLEST_SCALE)
                    scales[layer, page, half, head, offset] = scale
                    rounded = float(scales[layer, page, half, head, offset])
                    vector = vector / rounded
                    vector = np.rint(vector) if written.dtype == np.int8 else vector
                written[layer, page, half, head, offset] = vector.astype(written.dtype)
    return written, scales
