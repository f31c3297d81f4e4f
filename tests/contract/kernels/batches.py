"""Ragged batches for the kernel suites: every slot that no row uses holds NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype("float16"), "float32": np.dtype("float32")}
# Largest error of an output of size about 1: rounding of the output, and of what the dtype keeps in between.
TOLERANCE = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 1e-5}


@dataclass(frozen=True)
class Heads:
    """Axes of the model: H, K, D."""

    query: int = 4
    kv: int = 2
    dim: int = 64


@dataclass(frozen=True)
class Batch:
    """Arguments of the operation, as numpy arrays."""

    q: np.ndarray
    kv_pages: np.ndarray
    page_table: np.ndarray
    query_start: np.ndarray
    kv_length: np.ndarray

    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.q, self.kv_pages, self.page_table, self.query_start, self.kv_length


def make_batch(
    rows: Sequence[tuple[int, int]],
    *,
    seed: int = 0,
    heads: Heads = Heads(),
    page_size: int = 16,
    dtype: str = "float32",
    layers: int = 2,
    layer: int = 1,
    tokens: int | None = None,
    padded_rows: int | None = None,
    pages_per_row: int | None = None,
    magnitude: float = 1.0,
) -> Batch:
    """Make a batch of rows (queries of this step, keys in all), padded to `tokens` and `padded_rows`."""
    rng = np.random.default_rng(seed)
    real = sum(count for count, _ in rows)
    tokens = real + 3 if tokens is None else tokens
    padded_rows = len(rows) if padded_rows is None else padded_rows
    used = [-(-length // page_size) for _, length in rows]
    pages_per_row = max(*used, 1) + 1 if pages_per_row is None else pages_per_row
    num_pages = padded_rows * pages_per_row + 2
    free = list(rng.permutation(num_pages - 1) + 1)
    shape = (layers, num_pages, 2, heads.kv, page_size, heads.dim)
    kv_pages = np.full(shape, np.nan, np.float32)
    page_table = np.zeros((padded_rows, pages_per_row), np.int32)
    query_start = np.full(padded_rows + 1, real, np.int32)
    kv_length = np.zeros(padded_rows, np.int32)
    query_start[: len(rows) + 1] = np.cumsum([0, *(count for count, _ in rows)])
    for row, (_, length) in enumerate(rows):
        kv_length[row] = length
        page_table[row, : used[row]] = [free.pop() for _ in range(used[row])]
        for key in range(length):
            page, offset = page_table[row, key // page_size], key % page_size
            kv_pages[layer, page, :, :, offset] = rng.standard_normal((2, heads.kv, heads.dim))
    q = rng.standard_normal((tokens, heads.query, heads.dim)) * magnitude
    q[real:] = np.nan
    return Batch(q.astype(DTYPES[dtype]), kv_pages.astype(DTYPES[dtype]), page_table, query_start, kv_length)
