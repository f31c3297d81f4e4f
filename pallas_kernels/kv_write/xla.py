"""kv_write as XLA scatters: aliased in place when the cache is donated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.kv_write.quantize import quantize


def kv_write(
    kv_pages: jax.Array, kv_scales: jax.Array | None, k: jax.Array, v: jax.Array | None, slots: jax.Array, *, layer: int
) -> tuple[jax.Array, jax.Array | None]:
    size = kv_pages.shape[4]
    page, offset = slots // size, slots % size
    # One scatter for both halves: every update is the [2, K, D] of one token.
    new = k[:, None] if v is None else jnp.stack([k, v], axis=1)
    where = layer, page, slice(None), slice(None), offset
    if kv_scales is None:
        return kv_pages.at[where].set(new.astype(kv_pages.dtype), mode="promise_in_bounds"), None
    numbers, scales = quantize(new, kv_pages.dtype, kv_scales.dtype)
    kv_scales = kv_scales.at[where].set(scales, mode="promise_in_bounds")
    if kv_pages.dtype != jnp.float8_e4m3fn:
        return kv_pages.at[where].set(numbers, mode="promise_in_bounds"), kv_scales
    # As bytes: on CPU a scatter of float8 converts the whole cache to float16 and back. That costs a copy a step there, unless
    # the caller's cache is such bytes itself, and nothing on a GPU.
    stored = lax.bitcast_convert_type(kv_pages, jnp.uint8)
    stored = stored.at[where].set(lax.bitcast_convert_type(numbers, jnp.uint8), mode="promise_in_bounds")
    return lax.bitcast_convert_type(stored, kv_pages.dtype), kv_scales
