"""What implementations of ragged_paged_attention are chosen by: everything that tracing knows of a call."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels.ragged_paged_attention.options import AttentionOptions


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """Shapes, dtypes and options of a call; axes as in api.py.

    Attributes:
        tokens, rows, pages_per_row: T, R, M. With no more tokens than rows it is what decode steps compile to, though rows may
            still have several queries.
        heads, kv_heads, head_dim: H, K, D.
        page_size: S.
        dtype: of the queries and the result.
        kv_dtype: of the cache.
        scales_dtype: of the cache's scales; None for a cache without.
        sinks: whether there are any.
    """

    tokens: int
    rows: int
    pages_per_row: int
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    dtype: jnp.dtype
    kv_dtype: jnp.dtype
    options: AttentionOptions
    scales_dtype: jnp.dtype | None = None
    sinks: bool = False

    @classmethod
    def of(
        cls,
        q: jax.Array,
        kv_pages: jax.Array,
        page_table: jax.Array,
        *,
        options: AttentionOptions,
        kv_scales: jax.Array | None,
        sinks: jax.Array | None,
    ) -> AttentionProblem:
        return cls(
            tokens=q.shape[0],
            rows=page_table.shape[0],
            pages_per_row=page_table.shape[1],
            heads=q.shape[1],
            kv_heads=kv_pages.shape[3],
            head_dim=q.shape[2],
            page_size=kv_pages.shape[4],
            dtype=q.dtype,
            kv_dtype=kv_pages.dtype,
            scales_dtype=None if kv_scales is None else kv_scales.dtype,
            options=options,
            sinks=sinks is not None,
        )
