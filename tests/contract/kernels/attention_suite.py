"""What every implementation of ragged_paged_attention must do; a test module subclasses it and names one."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.ragged_paged_attention import check_inputs, ragged_paged_attention, reference

from .batches import TOLERANCE, Batch, Heads, make_batch

# Decodes, a prompt from its start, chunks that begin inside and at the edge of a page, length 1, a row without queries.
MIXED = ((1, 1), (1, 16), (1, 17), (5, 5), (7, 23), (16, 32), (1, 33), (0, 0), (2, 18), (1, 48))
DECODES = ((1, 1), (1, 15), (1, 16), (1, 17), (1, 200))
SINKS = np.asarray([-2.0, 0.0, 1.0, 9.0], np.float32)


@cache
def compiled(implementation: str, **options: Any) -> Any:
    """One jitted function per set of static arguments, so that tests with equal shapes share a compilation."""
    return jax.jit(partial(ragged_paged_attention, implementation=implementation, **options))


class AttentionSuite:
    implementation: ClassVar[str]

    def attend(self, batch: Batch, *, sinks: np.ndarray | None = None, **options: Any) -> np.ndarray:
        call = compiled(self.implementation, **{"layer": 1, "scale": 0.125} | options)
        sinks = None if sinks is None else jnp.asarray(sinks)
        return np.asarray(call(*(jnp.asarray(array) for array in batch.arrays()), sinks=sinks))

    def check(self, batch: Batch, **options: Any) -> None:
        check_inputs(batch.q.shape[0], batch.kv_pages, batch.page_table, batch.query_start, batch.kv_length)
        got = self.attend(batch, **options)
        assert got.dtype == batch.q.dtype
        self.compare(batch, got, **options)

    def compare(self, batch: Batch, got: np.ndarray, **options: Any) -> None:
        want = reference.ragged_paged_attention(*batch.arrays(), **{"layer": 1, "scale": 0.125} | options)
        tolerance = TOLERANCE[batch.q.dtype.name]
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance)

    @pytest.mark.parametrize("rows", [MIXED, DECODES], ids=["mixed", "decodes"])
    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
    def test_dtypes(self, dtype, rows):
        self.check(make_batch(rows, dtype=dtype))

    @pytest.mark.parametrize(("query", "kv"), [(4, 4), (6, 1), (7, 1), (8, 2), (1, 1)])
    def test_heads(self, query, kv):
        self.check(make_batch(MIXED, heads=Heads(query, kv, 64)))

    @pytest.mark.parametrize("dim", [80, 96, 128])
    def test_head_dim(self, dim):
        self.check(make_batch(MIXED, heads=Heads(4, 2, dim)))

    @pytest.mark.parametrize("page_size", [8, 32])
    def test_page_size(self, page_size):
        self.check(make_batch(MIXED, page_size=page_size))

    @pytest.mark.parametrize("window", [1, 5, 16, 1000])
    def test_window(self, window):
        self.check(make_batch((*MIXED, (1, 300), (4, 290))), window=window)

    def test_soft_cap(self):
        self.check(make_batch(MIXED, magnitude=30.0), soft_cap=5.0)

    def test_sinks(self):
        self.check(make_batch(MIXED), sinks=SINKS)

    def test_everything_at_once(self):
        self.check(make_batch(MIXED, dtype="bfloat16"), window=9, soft_cap=3.0, sinks=SINKS, scale=0.3)

    def test_long_chunks(self):
        # More queries and keys than any block holds.
        self.check(make_batch(((300, 450), (1, 500), (131, 131)), heads=Heads(2, 1, 64)))

    @pytest.mark.parametrize("magnitude", [1e-30, 300.0])
    def test_tiny_and_huge_scores(self, magnitude):
        batch = make_batch(MIXED, magnitude=magnitude)
        assert np.isfinite(self.attend(batch)).all()
        if magnitude < 1.0:
            self.check(batch)

    def test_one_token(self):
        self.check(make_batch([(1, 40)], tokens=1))

    def test_as_many_tokens_as_rows(self):
        # Nothing static tells a batch of decodes from this one.
        self.check(make_batch([(1, 9), (3, 20), (0, 0), (2, 2), (0, 0), (1, 30)], tokens=7, padded_rows=7))

    def test_nothing_to_do(self):
        batch = make_batch([(0, 0), (0, 0)], tokens=8)
        assert (self.attend(batch) == 0).all()

    def test_padding_is_zero(self):
        batch = make_batch(MIXED, tokens=64, padded_rows=16, dtype="bfloat16")
        got = self.attend(batch)
        assert (got[batch.query_start[-1] :] == 0).all()
        self.compare(batch, got)

    def test_every_layer_is_its_own(self):
        self.check(make_batch(MIXED, layers=3, layer=0), layer=0)

    def test_neighbours_do_not_matter(self):
        batch = make_batch(MIXED)
        alone = np.array(batch.kv_length)
        alone[:6] = 0
        start = np.maximum(batch.query_start - batch.query_start[6], 0)
        cut = Batch(np.roll(batch.q, -batch.query_start[6], axis=0), batch.kv_pages, batch.page_table, start, alone)
        both, rest = self.attend(batch), self.attend(cut)
        first, last = batch.query_start[6], batch.query_start[-1]
        np.testing.assert_array_equal(both[first:last], rest[: last - first])

    def test_a_chunk_equals_its_decodes(self):
        batch = make_batch([(5, 37)], tokens=5, padded_rows=5)
        table = np.repeat(batch.page_table[:1], 5, axis=0)
        lengths = np.arange(33, 38, dtype=np.int32)
        apart = Batch(batch.q, batch.kv_pages, table, np.arange(6, dtype=np.int32), lengths)
        np.testing.assert_allclose(self.attend(batch), self.attend(apart), rtol=1e-5, atol=1e-5)

    def test_random_batches(self):
        row = st.tuples(st.integers(0, 6), st.integers(0, 40)).map(lambda x: (x[0], x[0] + x[1] if x[0] else 0))

        @settings(max_examples=25, deadline=None, derandomize=True)
        @given(st.lists(row, min_size=1, max_size=5), st.integers(0, 2**32 - 1))
        def run(rows: list[tuple[int, int]], seed: int) -> None:
            sizes = {"page_size": 8, "tokens": 32, "padded_rows": 5, "pages_per_row": 6}
            batch = make_batch(rows, seed=seed, heads=Heads(2, 1, 16), **sizes)
            self.compare(batch, self.attend(batch, window=20), window=20)

        run()
