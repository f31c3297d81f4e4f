"""What every implementation of ragged_paged_attention must do; a test module subclasses it and names one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.parity import cases
from pallas_kernels.parity.cases import ATTENTION_CASES, DTYPES
from pallas_kernels.parity.gate import TOLERANCE, check_attention
from pallas_kernels.ragged_paged_attention import check_inputs, ragged_paged_attention, reference

from .batches import Batch, Heads, make_batch
from .in_turn import in_turn

SINKS = np.asarray(cases.SINKS, np.float32)
IN_OTHER_DTYPES = [
    case
    for case in ATTENTION_CASES
    if case.name in ("mixed", "decodes", "everything", "huge scores", "bfloat16 scales", "latents", "long contexts")
]

# Sizes between those of other cases.
BETWEEN = (
    "one KV head",
    "groups of 4",
    "head dim 96",
    "head dim 128",
    "pages of 32",
    "window never full",
    "latents, unequal rows",
)


@cache
def compiled(implementation: str, **options: Any) -> Any:
    """One jitted function per set of static arguments, so that tests with equal shapes share a compilation."""
    return jax.jit(partial(ragged_paged_attention, implementation=implementation, **options))


class AttentionSuite:
    implementation: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = DTYPES

    def attend(self, batch: Batch, *, sinks: np.ndarray | None = None, **options: Any) -> np.ndarray:
        call = compiled(self.implementation, layer=1, options=replace(cases.PLAIN, **options))
        given = None if sinks is None else jnp.asarray(sinks)
        return np.asarray(call(*(jnp.asarray(array) for array in batch.arrays()), sinks=given))

    def check(self, batch: Batch, **options: Any) -> None:
        check_inputs(batch.q.shape[0], jnp.asarray(batch.kv_pages), batch.page_table, batch.query_start, batch.kv_length)
        got = self.attend(batch, **options)
        assert got.dtype == batch.q.dtype
        self.compare(batch, got, **options)

    def compare(self, batch: Batch, got: np.ndarray, **options: Any) -> None:
        want = reference.ragged_paged_attention(*batch.arrays(), layer=1, options=replace(cases.PLAIN, **options))
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=TOLERANCE[batch.q.dtype.name].max_abs)

    @pytest.mark.parametrize(
        "case",
        [pytest.param(case, marks=pytest.mark.extended if case.name in BETWEEN else ()) for case in ATTENTION_CASES],
        ids=lambda case: case.name,
    )
    def test_case(self, case):
        result = check_attention(case, "float32", self.implementation)
        assert result.verdict == "pass", result

    @pytest.mark.parametrize(
        ("dtype", "case"),
        [
            *in_turn(IN_OTHER_DTYPES, ("bfloat16", "float16"), everywhere=("mixed",)),
            *in_turn(IN_OTHER_DTYPES, ("float8", "int8"), everywhere=("bfloat16 scales",)),
        ],
    )
    def test_dtypes(self, dtype, case):
        result = check_attention(case, dtype, self.implementation)
        assert result.verdict == ("pass" if dtype in self.dtypes else "unsupported"), result

    def test_neighbours_do_not_matter(self):
        batch = make_batch(cases.MIXED)
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

    def test_pages_before_every_window_may_be_given_back(self):
        """The null page, which holds NaN, may stand in their place."""
        rows = [(1, 70), (7, 90), (40, 61), (1, 3), (2, 68)]
        batch, table = make_batch(rows), make_batch(rows).page_table
        for row, (count, length) in enumerate(rows):
            table[row, : max(0, length - count - 19) // 16] = 0
        assert (table == 0).sum() > (batch.page_table == 0).sum() + 8
        check_inputs(batch.q.shape[0], jnp.asarray(batch.kv_pages), table, batch.query_start, batch.kv_length, window=20)
        got = self.attend(replace(batch, page_table=table), window=20)
        np.testing.assert_array_equal(got, self.attend(batch, window=20))
        self.compare(batch, got, window=20)

    @pytest.mark.parametrize("sizes", [{}, {"tokens": 5, "padded_rows": 6}], ids=["prompts", "decodes"])
    def test_no_key_of_another_chunk_is_read(self, sizes):
        """The null page, which holds NaN, may stand in the place of pages before the chunk of a row's first query."""
        rows = [(1, 70), (2, 65), (1, 32), (1, 33)] if sizes else [(1, 70), (7, 90), (40, 61), (1, 3), (2, 65), (33, 33)]
        batch, table = make_batch(rows, **sizes), make_batch(rows, **sizes).page_table
        for row, (count, length) in enumerate(rows):
            table[row, : (length - count) // 32 * 2] = 0
        got = self.attend(replace(batch, page_table=table), chunk=32)
        self.compare(batch, got, chunk=32)

    def test_random_batches(self):
        row = st.tuples(st.integers(0, 6), st.integers(0, 40)).map(lambda x: (x[0], x[0] + x[1] if x[0] else 0))

        @settings(max_examples=25, deadline=None, derandomize=True)
        @given(st.lists(row, min_size=1, max_size=5), st.integers(0, 2**32 - 1))
        def run(rows: list[tuple[int, int]], seed: int) -> None:
            sizes: dict[str, Any] = {"page_size": 8, "tokens": 32, "padded_rows": 5, "pages_per_row": 6}
            batch = make_batch(rows, seed=seed, heads=Heads(2, 1, 16), **sizes)
            self.compare(batch, self.attend(batch, window=20), window=20)

        run()
