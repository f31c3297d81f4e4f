"""What implementations of rotate_and_write are chosen by: everything that tracing knows of a call."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels.rotate_and_write.rotation import Rotation


@dataclass(frozen=True, slots=True)
class RotateProblem:
    """Shapes and dtypes of a call; axes as in api.py.

    Attributes:
        heads, kv_heads, head_dim: H, K, D.
        rotated_dims: of the D, those that are rotated.
        dtype: of queries, keys and values.
        kv_dtype: of the cache.
        values: whether the cache has values beside its keys.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotated_dims: int
    dtype: jnp.dtype
    kv_dtype: jnp.dtype
    values: bool = True

    @classmethod
    def of(cls, kv_pages: jax.Array, q: jax.Array, rotation: Rotation) -> RotateProblem:
        return cls(
            heads=q.shape[1],
            kv_heads=kv_pages.shape[3],
            head_dim=kv_pages.shape[5],
            rotated_dims=2 * rotation.cos.shape[1],
            dtype=q.dtype,
            kv_dtype=kv_pages.dtype,
            values=kv_pages.shape[2] == 2,
        )
