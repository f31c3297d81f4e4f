"""Rows as rows of chunks: whatever a batch has, in chunks of any number of pages."""

from functools import cache, partial
from typing import Any

import jax
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pallas_kernels.parity import cases
from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention, reference
from tests.contract.kernels.batches import Heads, make_batch

ROW = st.tuples(st.integers(0, 12), st.integers(0, 48)).map(lambda x: (x[0], x[0] + x[1] if x[0] else 0))
TOKENS = (24, 4 * 12 + 5)


@cache
def compiled(chunk: int) -> Any:
    """One function of a chunk's size: batches of equal shapes share a program, whatever they hold."""
    options = AttentionOptions(cases.PLAIN.scale, chunk=chunk)
    return jax.jit(partial(ragged_paged_attention, layer=1, options=options, implementation="xla"))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(ROW, min_size=1, max_size=4), st.sampled_from((4, 8, 24, 64, 128)), st.booleans())
# Rows that begin at the last position of a chunk, so that they spread over the most chunks.
@example([(24, 31)], 8, False)
@example([(24, 27)], 4, False)
@example([(24, 31)], 8, True)
def test_random_batches(rows: list[tuple[int, int]], chunk: int, decodes: bool) -> None:
    tokens = next(size for size in TOKENS if size >= sum(count for count, _ in rows))
    sizes: dict[str, Any] = {"page_size": 4, "pages_per_row": 16, "padded_rows": tokens if decodes else 4}
    batch = make_batch(rows, heads=Heads(2, 1, 8), tokens=tokens, **sizes)
    got = compiled(chunk)(*batch.arrays())
    options = AttentionOptions(cases.PLAIN.scale, chunk=chunk)
    want = reference.ragged_paged_attention(*batch.arrays(), layer=1, options=options)
    np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=1e-5)
