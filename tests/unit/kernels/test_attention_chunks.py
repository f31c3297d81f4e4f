"""Rows as rows of chunks: whatever a batch has, in chunks of any number of pages."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.parity import cases
from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention, reference
from tests.contract.kernels.batches import Heads, make_batch

ROW = st.tuples(st.integers(0, 20), st.integers(0, 40)).map(lambda x: (x[0], x[0] + x[1] if x[0] else 0))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(ROW, min_size=1, max_size=4), st.sampled_from((4, 8, 24, 64, 128)), st.booleans())
def test_random_batches(rows: list[tuple[int, int]], chunk: int, decodes: bool) -> None:
    tokens = max(sum(count for count, _ in rows), 1)
    sizes: dict[str, Any] = {"page_size": 4, "pages_per_row": 16, "padded_rows": tokens if decodes else 4}
    batch = make_batch(rows, heads=Heads(2, 1, 8), tokens=tokens + (0 if decodes else 5), **sizes)
    options = AttentionOptions(cases.PLAIN.scale, chunk=chunk)
    got = ragged_paged_attention(*map(jnp.asarray, batch.arrays()), layer=1, options=options, implementation="xla")
    want = reference.ragged_paged_attention(*batch.arrays(), layer=1, options=options)
    np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=1e-5)
