"""What lightning_index computes, and what its implementations are chosen by."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp


class IndexOptions(NamedTuple):
    """What is chosen.

    Attributes:
        top_k: positions of a token at most.
        first: where in a cached vector its index key begins.
    """

    top_k: int
    first: int = 0


class IndexProblem(NamedTuple):
    """A call: its sizes (see api.py), dtypes and options."""

    tokens: int
    rows: int
    pages_per_row: int
    heads: int
    dim: int
    page_size: int
    dtype: jnp.dtype
    kv_dtype: jnp.dtype
    options: IndexOptions
