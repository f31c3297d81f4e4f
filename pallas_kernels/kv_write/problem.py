"""What implementations of kv_write are chosen by: everything that tracing knows of a call."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True, slots=True)
class WriteProblem:
    """Shapes and dtypes of a call; axes as in api.py.

    Attributes:
        tokens, kv_heads, head_dim: T, K, D.
        page_size: S.
        dtype: of the new keys and values.
        kv_dtype: of the cache.
        scales_dtype: of the cache's scales; None for a cache without.
        values: whether the cache has values beside its keys.
    """

    tokens: int
    kv_heads: int
    head_dim: int
    page_size: int
    dtype: jnp.dtype
    kv_dtype: jnp.dtype
    scales_dtype: jnp.dtype | None = None
    values: bool = True

    @classmethod
    def of(cls, kv_pages: jax.Array, k: jax.Array, kv_scales: jax.Array | None) -> WriteProblem:
        return cls(
            tokens=k.shape[0],
            kv_heads=kv_pages.shape[3],
            head_dim=kv_pages.shape[5],
            page_size=kv_pages.shape[4],
            dtype=k.dtype,
            kv_dtype=kv_pages.dtype,
            scales_dtype=None if kv_scales is None else kv_scales.dtype,
            values=kv_pages.shape[2] == 2,
        )
