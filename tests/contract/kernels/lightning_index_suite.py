"""What every implementation of lightning_index must do; a test module subclasses it and names one."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import jax
import numpy as np
import pytest

from pallas_kernels.lightning_index import IndexOptions, lightning_index, reference

from .index_cases import CASES, DIM, LAYER, VECTOR, IndexCase, batch_of

HEADS = 16
NEAR = 1e-4  # scores that rounding may order otherwise


class LightningIndexSuite:
    implementation: ClassVar[str]

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_case(self, case: IndexCase) -> None:
        """The set of each token's positions is the reference's, but for scores that are nearly the last chosen one's."""
        batch, options = batch_of(case, HEADS, DIM), IndexOptions(case.top_k, VECTOR - DIM)
        weights = np.random.default_rng(1).standard_normal((batch.q.shape[0], HEADS)).astype(np.float32)
        weights[batch.query_start[-1] :] = np.nan
        q, *rest = batch.arrays()
        call = partial(lightning_index, layer=LAYER, options=options, implementation=self.implementation)
        got = np.asarray(jax.jit(call)(q, weights, *rest, kv_scales=batch.kv_scales))
        assert got.shape == (len(q), min(case.top_k, batch.page_table.shape[1] * batch.kv_pages.shape[4]))
        assert got.dtype == np.int32
        scores = reference.index_scores(q, weights, *rest, layer=LAYER, options=options, kv_scales=batch.kv_scales)
        for positions, each in zip(got, scores, strict=True):
            count = min(case.top_k, len(each))
            chosen = positions[:count]
            assert (positions[count:] == -1).all()
            assert len(set(chosen.tolist())) == count
            assert ((chosen >= 0) & (chosen < len(each))).all()
            if count:
                last = np.sort(each)[-count]
                assert each[chosen].min() >= last - NEAR
                assert set(np.flatnonzero(each > last + NEAR)) <= set(chosen.tolist())

    def test_of_equal_scores_the_earlier_positions(self) -> None:
        """All scores are 0."""
        case = IndexCase("ties", [(1, 60), (20, 40)])
        batch = batch_of(case, HEADS, DIM)
        q, *rest = batch.arrays()
        weights = np.zeros((len(q), HEADS), np.float32)
        options = IndexOptions(8, VECTOR - DIM)
        call = partial(lightning_index, layer=LAYER, options=options, implementation=self.implementation)
        got = jax.jit(call)(q, weights, *rest)
        want = np.broadcast_to(np.arange(8), (21, 8))
        np.testing.assert_array_equal(np.sort(np.asarray(got)[:21], axis=1), want)
