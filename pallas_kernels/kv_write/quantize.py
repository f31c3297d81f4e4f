"""Quantization of keys and values to float8: one scale a token and KV head."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

E4M3_LARGEST = 448.0  # of the finite numbers; there is no infinity


def quantize(vectors: jax.Array, scale_dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Vectors [..., D] as E4M3 numbers and scales [...]: a vector is about its numbers times its scale.

    The scale puts the largest magnitude of a vector at the largest number of E4M3. It is rounded to `scale_dtype`
    before it divides, so that reading multiplies by what writing divided by; 0 or what is too small for a normal number of
    `scale_dtype` gets the smallest normal one.
    """
    vectors = vectors.astype(jnp.float32)
    scale = jnp.max(jnp.abs(vectors), axis=-1) / E4M3_LARGEST
    scale = jnp.maximum(scale, float(np.finfo(scale_dtype).tiny)).astype(scale_dtype)
    # A scale rounded down leaves 448.3 at most, and up to 464 rounds to 448: nothing becomes NaN.
    return (vectors / scale.astype(jnp.float32)[..., None]).astype(jnp.float8_e4m3fn), scale
