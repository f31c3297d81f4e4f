"""Layer normalisation (Ba et al. 2016)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.norm import layer_norm
from jaxserve.models.parameter import declare


class LayerNorms(nnx.Module):
    """LayerNorm over E in all places of a model: `scale` and `bias` are [norms, E], as in `norm.Norms`."""

    def __init__(self, count: int, size: int, eps: float, dtype: jnp.dtype, *, bias: bool) -> None:
        self.scale = declare((count, size), (None, "embed"), dtype)
        self.bias = declare((count, size), (None, "embed"), dtype) if bias else None
        self.eps = eps

    def __call__(self, number: int, x: jax.Array) -> jax.Array:
        """x[T, E] after a norm, computed in float32; the result has x's dtype."""
        return layer_norm(x, self.scale[...][number], self.eps, None if self.bias is None else self.bias[...][number])
