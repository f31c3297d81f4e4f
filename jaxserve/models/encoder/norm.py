"""Layer normalisation (Ba et al. 2016)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.parameter import declare


class LayerNorms(nnx.Module):
    """LayerNorm over E in all places of a model: `scale` and `bias` are [norms, E], as in `norm.Norms`."""

    def __init__(self, count: int, size: int, eps: float, dtype: jnp.dtype, *, bias: bool) -> None:
        self.scale = declare((count, size), (None, "embed"), dtype)
        self.bias = declare((count, size), (None, "embed"), dtype) if bias else None
        self.eps = eps

    def __call__(self, number: int, x: jax.Array) -> jax.Array:
        """x[T, E] after a norm, computed in float32; the result has x's dtype."""
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + self.eps)
        y = centred * inverse * self.scale[...][number].astype(jnp.float32)[None]
        if self.bias is not None:
            y += self.bias[...][number].astype(jnp.float32)[None]
        return y.astype(x.dtype)
