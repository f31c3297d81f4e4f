"""Root-mean-square normalisation (Zhang and Sennrich 2019)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.parameter import declare


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) * (scale + offset) over the last dimension."""

    def __init__(self, size: int, axis: str, config: DecoderConfig, dtype: jnp.dtype) -> None:
        self.scale = declare((size,), (axis,), dtype)
        self.eps, self.offset = config.norm_eps, config.norm_offset

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise x[..., size], computing in float32; the result has x's shape and dtype."""
        wide = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        scale = jnp.expand_dims(self.scale[...].astype(jnp.float32), tuple(range(x.ndim - 1)))
        return (wide * inverse * (scale + self.offset if self.offset else scale)).astype(x.dtype)


class HeadsNorm(nnx.Module):
    """RMSNorm over all heads of a token together (OLMo 2, 2025).

    `scale` [s, heads/s * D] holds each shard's heads side by side. Heads that several shards hold count as often in the mean,
    which changes nothing: all of them do.
    """

    def __init__(self, heads: int, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> None:
        self.scale = declare((shards, heads // shards * config.head_dim), ("heads", None), dtype)
        self.eps = config.norm_eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise x[T, heads, D], computing in float32; the result has x's shape and dtype."""
        wide = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=(1, 2), keepdims=True) + self.eps)
        scale = self.scale[...].astype(jnp.float32).reshape(1, *x.shape[1:])
        return (wide * inverse * scale).astype(x.dtype)
