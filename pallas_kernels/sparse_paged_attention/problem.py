"""What implementations of sparse_paged_attention are chosen by."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from pallas_kernels.ragged_paged_attention import AttentionOptions


class SparseProblem(NamedTuple):
    """A call: its sizes (see api.py), dtypes and options."""

    tokens: int
    rows: int
    pages_per_row: int
    chosen: int
    heads: int
    dim: int
    page_size: int
    dtype: jnp.dtype
    kv_dtype: jnp.dtype
    options: AttentionOptions
