"""Root-mean-square normalisation (Zhang and Sennrich 2019)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.parameter import declare


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) * scale over the last dimension."""

    def __init__(self, size: int, axis: str, eps: float, dtype: jnp.dtype) -> None:
        self.scale = declare((size,), (axis,), dtype)
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise x[..., size], computing in float32; the result has x's shape and dtype."""
        wide = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        scale = jnp.expand_dims(self.scale[...].astype(jnp.float32), tuple(range(x.ndim - 1)))
        return (wide * inverse * scale).astype(x.dtype)
