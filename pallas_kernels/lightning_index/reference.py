"""lightning_index as plain loops in float64: what every implementation is compared with."""

from __future__ import annotations

import numpy as np

from pallas_kernels.lightning_index.problem import IndexOptions


def lightning_index(
    q: np.ndarray,
    weights: np.ndarray,
    kv_pages: np.ndarray,
    page_table: np.ndarray,
    query_start: np.ndarray,
    kv_length: np.ndarray,
    *,
    layer: int,
    options: IndexOptions,
    kv_scales: np.ndarray | None = None,
) -> np.ndarray:
    """See api.py; numpy arrays in, int32 out, the best positions first."""
    scores = index_scores(
        q, weights, kv_pages, page_table, query_start, kv_length, layer=layer, options=options, kv_scales=kv_scales
    )
    chosen = np.full((q.shape[0], min(options.top_k, page_table.shape[1] * kv_pages.shape[4])), -1, np.int32)
    for token, each in enumerate(scores):
        best = np.argsort(-each, kind="stable")[: options.top_k]
        chosen[token, : len(best)] = best
    return chosen


def index_scores(
    q: np.ndarray,
    weights: np.ndarray,
    kv_pages: np.ndarray,
    page_table: np.ndarray,
    query_start: np.ndarray,
    kv_length: np.ndarray,
    *,
    layer: int,
    options: IndexOptions,
    kv_scales: np.ndarray | None = None,
) -> list[np.ndarray]:
    """The scores of each token, float64, one of every position that it sees; none of a padding token."""
    size, part = kv_pages.shape[4], slice(options.first, options.first + q.shape[2])
    scores = [np.zeros(0) for _ in q]
    for row, length in enumerate(kv_length):
        first, last = int(query_start[row]), int(query_start[row + 1])
        for token in range(first, last):
            found = []
            for position in range(int(length) - last + token + 1):
                place = layer, page_table[row, position // size], 0, 0, position % size
                key = kv_pages[place][part].astype(np.float64)
                if kv_scales is not None:
                    key = key * np.float64(kv_scales[place])
                products = np.maximum(q[token].astype(np.float64) @ key, 0.0)
                found.append(float(weights[token].astype(np.float64) @ products))
            scores[token] = np.array(found)
    return scores
