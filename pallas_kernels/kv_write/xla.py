"""kv_write as XLA scatters: aliased in place when the cache is donated."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.kv_write.quantize import quantize


def kv_write(
    kv_pages: jax.Array, kv_scales: jax.Array | None, k: jax.Array, v: jax.Array, slots: jax.Array, *, layer: int
) -> tuple[jax.Array, jax.Array | None]:
    """See api.py."""
    size = kv_pages.shape[4]
    page, offset = slots // size, slots % size
    # One scatter for both halves: every update is the [2, K, D] of one token.
    new = jnp.stack([k, v], axis=1)
    if kv_scales is not None:
        new, scales = quantize(new, kv_scales.dtype)
        kv_scales = kv_scales.at[layer, page, :, :, offset].set(scales, mode="promise_in_bounds")
    new = new.astype(kv_pages.dtype)
    return kv_pages.at[layer, page, :, :, offset].set(new, mode="promise_in_bounds"), kv_scales
