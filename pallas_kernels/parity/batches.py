"""Ragged batches over a paged cache: every slot that no row uses, and every query that is padding, holds NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from pallas_kernels.kv_write.quantize import SMALLEST_SCALE, largest_number

FLOAT8 = jnp.dtype(jnp.float8_e4m3fn)
INT8 = jnp.dtype(jnp.int8)
LARGEST_VALUE = 2.0  # of a value in the cache: outputs stay where half an ulp of bfloat16 is below the gate


@dataclass(frozen=True, slots=True)
class Heads:
    """Axes of the model: H, K, D."""

    query: int = 4
    kv: int = 2
    dim: int = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """Arguments of ragged_paged_attention, as numpy arrays; `kv_scales` is None unless the cache is quantized."""

    q: np.ndarray
    kv_pages: np.ndarray
    page_table: np.ndarray
    query_start: np.ndarray
    kv_length: np.ndarray
    kv_scales: np.ndarray | None = None

    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.q, self.kv_pages, self.page_table, self.query_start, self.kv_length

    def slots(self) -> np.ndarray:
        """Where the cache has each query's own key and value, page * S + offset, int32 [T]; 0 for padding."""
        slots, size = np.zeros(self.q.shape[0], np.int32), self.kv_pages.shape[4]
        for row, length in enumerate(self.kv_length):
            for token in range(self.query_start[row], self.query_start[row + 1]):
                key = length - self.query_start[row + 1] + token
                slots[token] = self.page_table[row, key // size] * size + key % size
        return slots


def make_batch(
    rows: Sequence[tuple[int, int]],
    *,
    seed: int = 0,
    heads: Heads = Heads(),
    page_size: int = 16,
    dtype: str = "float32",
    kv_dtype: str | None = None,
    scale_dtype: str = "float32",
    layers: int = 2,
    layer: int = 1,
    tokens: int | None = None,
    padded_rows: int | None = None,
    pages_per_row: int | None = None,
    magnitude: float = 1.0,
    key_magnitude: float = 1.0,
    values: bool = True,
) -> Batch:
    """Make a batch of rows (queries of this step, keys in all), padded to `tokens` and `padded_rows`.

    Queries and keys are normal times their magnitudes, values are normal and cut off at 2. Pages are dealt at random.

    Args:
        rows: queries and keys of each.
        seed: of everything random.
        heads: H, K, D.
        page_size: S.
        dtype: of the queries.
        kv_dtype: of the cache, that of the queries unless given; float8_e4m3fn and int8 are quantized.
        scale_dtype: of the scales of a quantized cache.
        layers: L; only `layer` has anything but NaN.
        layer: the one that is used.
        tokens: T, 3 more than there are queries unless given.
        padded_rows: R, as many as `rows` unless given.
        pages_per_row: M, one more than the longest row needs unless given.
        magnitude: of the queries.
        key_magnitude: of the keys.
        values: whether the cache has values beside its keys; keys are cut off like them if not.
    """
    rng = np.random.default_rng(seed)
    real = sum(count for count, _ in rows)
    tokens = real + 3 if tokens is None else tokens
    padded_rows = len(rows) if padded_rows is None else padded_rows
    used = [-(-length // page_size) for _, length in rows]
    pages_per_row = max(*used, 1) + 1 if pages_per_row is None else pages_per_row
    num_pages = padded_rows * pages_per_row + 2
    free = list(rng.permutation(num_pages - 1) + 1)
    halves = 2 if values else 1
    kv_pages = np.full((layers, num_pages, halves, heads.kv, page_size, heads.dim), np.nan, np.float32)
    page_table = np.zeros((padded_rows, pages_per_row), np.int32)
    query_start = np.full(padded_rows + 1, real, np.int32)
    kv_length = np.zeros(padded_rows, np.int32)
    query_start[: len(rows) + 1] = np.cumsum([0, *(count for count, _ in rows)])
    for row, (_, length) in enumerate(rows):
        kv_length[row] = length
        page_table[row, : used[row]] = [free.pop() for _ in range(used[row])]
        for key in range(length):
            page, offset = page_table[row, key // page_size], key % page_size
            kv_pages[layer, page, :, :, offset] = rng.standard_normal((halves, heads.kv, heads.dim))
    kv_pages[:, :, 0] *= key_magnitude
    kv_pages[:, :, -1] = np.clip(kv_pages[:, :, -1], -LARGEST_VALUE, LARGEST_VALUE)
    q = rng.standard_normal((tokens, heads.query, heads.dim)) * magnitude
    q[real:] = np.nan
    stored, scales = _store(kv_pages, jnp.dtype(kv_dtype or dtype), jnp.dtype(scale_dtype))
    return Batch(q.astype(jnp.dtype(dtype)), stored, page_table, query_start, kv_length, scales)


def _store(vectors: np.ndarray, dtype: np.dtype, scale_dtype: np.dtype) -> tuple[np.ndarray, np.ndarray | None]:
    """Vectors [..., D] as a cache of `dtype` holds them, with scales [...] if it is quantized; NaN stays NaN.

    In int8 only the scale says so: the numbers are the largest there are.
    """
    if dtype not in (FLOAT8, INT8):
        return vectors.astype(dtype), None
    largest = largest_number(dtype)
    scales = np.maximum(np.abs(vectors).max(axis=-1) / largest, SMALLEST_SCALE).astype(scale_dtype)
    scaled = vectors / scales.astype(np.float32)[..., None]
    return (np.rint(np.nan_to_num(scaled, nan=largest)) if dtype == INT8 else scaled).astype(dtype), scales
