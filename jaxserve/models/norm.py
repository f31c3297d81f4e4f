"""Root-mean-square normalisation (Zhang and Sennrich 2019), and layer normalisation without a bias (Ba et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.parameter import Parameter, Projected, declare, rounding
from pallas_kernels.round_rows import Norm, round_normed


class Norms(nnx.Module):
    """The norm over E in all its places: each layer's, in the order of `DecoderConfig.layer_norms`, and last the final one.

    `scale` [norms, E] is one parameter, because a call of a jitted function costs host time for every array that it is given. A
    norm reads its row where it uses it: a slice at a constant place is no kernel of its own.
    """

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        self.final = len(config.layer_norms)
        self.scale = declare((self.final + 1, config.hidden_size), (None, "embed"), dtype)
        self.eps, self.offset, self.layer_norm = config.norm_eps, config.norm_offset, config.layer_norm

    def __call__(self, number: int | None, x: jax.Array) -> jax.Array:
        """x[T, E] after a norm; as it is for None."""
        if number is None:
            return x
        if self.layer_norm:
            return layer_norm(x, self._row(number), self.eps)
        return rms(x, self._row(number), self.eps, self.offset)

    def of_sum(self, number: int | None, x: jax.Array, added: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """x[T, E] + added[T, E], and that after a norm."""
        total = x if added is None else x + added
        return total, self(number, total)

    def before_products(
        self, number: int | None, x: jax.Array, added: jax.Array | None, kernels: Sequence[Parameter]
    ) -> tuple[jax.Array, Projected]:
        """The same for all the products with `kernels`, which nothing else reads: rounded where these round it."""
        scheme = rounding(kernels)
        if scheme is None or number is None or self.layer_norm:
            return self.of_sum(number, x, added)
        return round_normed(x, added, self._row(number), norm=Norm(self.eps, self.offset), target=scheme.target)

    def _row(self, number: int) -> jax.Array:
        return jax.lax.index_in_dim(self.scale[...], number, keepdims=False)


class LayerScales(nnx.Module):
    """What the residual stream is multiplied by behind each layer: `scale` [L, 1], one parameter as in Norms."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        self.scale = declare((config.num_layers, 1), (None, None), dtype)

    def __call__(self, layer: int, x: jax.Array) -> jax.Array:
        """x[T, E] behind a layer, scaled."""
        return x * jax.lax.index_in_dim(self.scale[...], layer).astype(x.dtype)


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) * (scale + offset) over the last dimension."""

    def __init__(self, size: int, axis: str, config: DecoderConfig, dtype: jnp.dtype) -> None:
        self.scale = declare((size,), (axis,), dtype)
        self.eps, self.offset = config.norm_eps, config.norm_offset

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise x[..., size], computing in float32; the result has x's shape and dtype."""
        return rms(x, self.scale[...], self.eps, self.offset)


class HeadsNorm(nnx.Module):
    """RMSNorm over all heads of a token together (OLMo 2, 2025).

    `scale` [s, heads/s * D] holds each shard's heads side by side. Heads that several shards hold count as often in the mean,
    which changes nothing: all of them do.
    """

    def __init__(self, heads: int, head_dim: int, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> None:
        self.scale = declare((shards, heads // shards * head_dim), ("heads", None), dtype)
        self.eps = config.norm_eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise x[T, heads, D], computing in float32; the result has x's shape and dtype."""
        wide = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=(1, 2), keepdims=True) + self.eps)
        scale = self.scale[...].astype(jnp.float32).reshape(1, *x.shape[1:])
        return (wide * inverse * scale).astype(x.dtype)


def unscaled_rms(x: jax.Array, eps: float) -> jax.Array:
    """x[..., size] normalised, in its dtype, where no scale is stored."""
    return _normalised(x, eps).astype(x.dtype)


def _normalised(x: jax.Array, eps: float) -> jax.Array:
    """The same in float32."""
    wide = x.astype(jnp.float32)
    return wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)


def rms(x: jax.Array, scale: jax.Array, eps: float, offset: float = 0.0) -> jax.Array:
    """x[..., size] normalised, times scale[size] + offset."""
    scale = jnp.expand_dims(scale.astype(jnp.float32), tuple(range(x.ndim - 1)))
    return (_normalised(x, eps) * (scale + offset if offset else scale)).astype(x.dtype)


def layer_norm(x: jax.Array, scale: jax.Array, eps: float, bias: jax.Array | None = None) -> jax.Array:
    """x[T, E] less its mean, normalised, times scale[E] plus bias[E]; computed in float32, the result has x's dtype."""
    wide = x.astype(jnp.float32)
    y = _normalised(wide - jnp.mean(wide, axis=-1, keepdims=True), eps) * scale.astype(jnp.float32)[None]
    if bias is not None:
        y += bias.astype(jnp.float32)[None]
    return y.astype(x.dtype)
