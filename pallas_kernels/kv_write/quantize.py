"""Quantization of keys and values to 8 bits: one scale a token and KV head."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)  # the smallest normal number, of bfloat16 as of float32


def largest_number(dtype: jnp.dtype) -> float:
    """The largest magnitude that a quantized vector has: 448 in E4M3, which has no infinity, and 127 in int8."""
    return 127.0 if dtype == jnp.int8 else 448.0


def quantize(vectors: jax.Array, dtype: jnp.dtype, scale_dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Vectors [..., D] as E4M3 or int8 numbers and scales [...]: a vector is about its numbers times its scale.

    The scale puts the largest magnitude of a vector at the largest number. It is rounded to `scale_dtype` before it divides,
    so that reading multiplies by what writing divided by; 0 or what is too small for a normal number gets the smallest
    normal one.
    """
    vectors = vectors.astype(jnp.float32)
    scale = jnp.max(jnp.abs(vectors), axis=-1) / largest_number(dtype)
    scale = jnp.maximum(scale, SMALLEST_SCALE).astype(scale_dtype)
    scaled = vectors / scale.astype(jnp.float32)[..., None]
    # A scale rounded down leaves 1 + 2^-8 times as much at most, 449.8 or 127.497: up to 464 rounds to 448 and up to 127.5 to
    # 127, so nothing becomes NaN or wraps around.
    return (jnp.rint(scaled) if dtype == jnp.int8 else scaled).astype(dtype), scale
