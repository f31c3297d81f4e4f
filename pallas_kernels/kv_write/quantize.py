"""Quantization of keys and values to 8 bits: one scale a token and KV head."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def largest_number(dtype: jnp.dtype) -> float:
    """The largest magnitude that a quantized vector has: 448 in E4M3, which has no infinity, and 127 in int8."""
    return 127.0 if dtype == jnp.int8 else 448.0


def quantize(vectors: jax.Array, dtype: jnp.dtype, scale_dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Vectors [..., D] as E4M3 or int8 numbers and scales [...]: a vector is about its numbers times its scale.

    The scale puts the largest magnitude of a vector at the largest number. It is rounded to `scale_dtype` before it divides,
    so that reading multiplies by what writing divided by; 0 or what is too small for a normal number of `scale_dtype` gets
    the smallest normal one.
    """
    vectors = vectors.astype(jnp.float32)
    scale = jnp.max(jnp.abs(vectors), axis=-1) / largest_number(dtype)
    scale = jnp.maximum(scale, float(np.finfo(scale_dtype).tiny)).astype(scale_dtype)
    scaled = vectors / scale.astype(jnp.float32)[..., None]
    # A scale rounded down leaves 448.3 or 127.1 at most: up to 464 rounds to 448 and up to 127.5 to 127, so nothing becomes
    # NaN or wraps around.
    return (jnp.rint(scaled) if dtype == jnp.int8 else scaled).astype(dtype), scale
