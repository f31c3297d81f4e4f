"""What every implementation of sparse_paged_attention must do; a test module subclasses it and names one."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import jax
import numpy as np
import pytest

from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.ragged_paged_attention import reference as ragged
from pallas_kernels.sparse_paged_attention import reference, sparse_paged_attention

from .batches import Batch
from .index_cases import CASES, LAYER, VECTOR, IndexCase, batch_of

HEADS, DIM = 4, 24
OPTIONS = AttentionOptions(0.3, value_dim=20)
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


def chosen(batch: Batch, top_k: int) -> np.ndarray:
    """Random positions of each token, as many as it sees and no more than that, in random order; padding has none."""
    rng = np.random.default_rng(2)
    positions = np.full((batch.q.shape[0], top_k), -1, np.int32)
    for row, length in enumerate(batch.kv_length):
        for token in range(batch.query_start[row], batch.query_start[row + 1]):
            seen = int(length - batch.query_start[row + 1]) + token + 1
            positions[token, : min(seen, top_k)] = rng.permutation(seen)[:top_k]
    return positions


def without(batch: Batch, positions: np.ndarray) -> np.ndarray:
    """The cache with NaN wherever no token attends."""
    pages, size = batch.kv_pages.copy(), batch.kv_pages.shape[4]
    used = np.zeros(pages.shape[1:5], bool)
    for row in range(len(batch.kv_length)):
        for token in range(batch.query_start[row], batch.query_start[row + 1]):
            mine = positions[token][positions[token] >= 0]
            used[batch.page_table[row, mine // size], :, :, mine % size] = True
    pages[LAYER][~used] = np.nan
    return pages


class SparsePagedAttentionSuite:
    implementation: ClassVar[str]

    def attend(self, batch: Batch, positions: np.ndarray, pages: np.ndarray) -> np.ndarray:
        call = partial(sparse_paged_attention, layer=LAYER, options=OPTIONS, implementation=self.implementation)
        q, _, *rest = batch.arrays()
        return np.asarray(jax.jit(call)(q, positions, pages, *rest, kv_scales=batch.kv_scales))

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_case(self, case: IndexCase) -> None:
        batch = batch_of(case, HEADS, DIM)
        positions, real = chosen(batch, case.top_k), batch.query_start[-1]
        pages = batch.kv_pages if batch.kv_scales is not None else without(batch, positions)
        got = self.attend(batch, positions, pages)
        q, _, *rest = batch.arrays()
        want = reference.sparse_paged_attention(
            q, positions, pages, *rest, layer=LAYER, options=OPTIONS, kv_scales=batch.kv_scales
        )
        assert got.dtype == q.dtype
        tolerance = TOLERANCE[q.dtype.name]
        np.testing.assert_allclose(got[:real].astype(np.float64), want[:real], atol=tolerance, rtol=tolerance)

    def test_all_positions_are_full_attention(self) -> None:
        """Of the first numbers of the cached vectors, as if there were no others."""
        batch = batch_of(IndexCase("all", [(9, 30), (1, 17), (12, 12)]), HEADS, DIM)
        q, pages, *rest = batch.arrays()
        want = ragged.ragged_paged_attention(q, pages[..., :DIM], *rest, layer=LAYER, options=OPTIONS)
        got = self.attend(batch, chosen(batch, 30), pages)
        np.testing.assert_allclose(got[:22], want[:22], atol=1e-5, rtol=1e-5)
        assert VECTOR > DIM
