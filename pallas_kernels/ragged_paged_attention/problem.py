"""What implementations of ragged_paged_attention are chosen by: everything that tracing knows of a call."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp


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
        window, soft_cap: as in api.py.
        sinks: whether there are any.
        value_dim: as in api.py.
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
    scales_dtype: jnp.dtype | None = None
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    value_dim: int | None = None

    @classmethod
    def of(
        cls,
        q: jax.Array,
        kv_pages: jax.Array,
        page_table: jax.Array,
        *,
        kv_scales: jax.Array | None,
        window: int | None,
        soft_cap: float | None,
        sinks: jax.Array | None,
        value_dim: int | None,
    ) -> AttentionProblem:
        """The problem that arguments pose."""
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
            window=window,
            soft_cap=soft_cap,
            sinks=sinks is not None,
            value_dim=value_dim,
        )
