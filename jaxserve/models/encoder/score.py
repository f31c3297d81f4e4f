"""The head of an encoder that classifies: what it pools goes through a layer more before there is an output a class."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.encoder.norm import LayerNorms
from jaxserve.models.encoder_config import EncoderConfig
from jaxserve.models.parameter import declare


class PooledScore(nnx.Module):
    """out(activation(dense(x))); ModernBERT normalises what goes into `out`. On every device, as the checkpoint has it."""

    def __init__(self, config: DecoderConfig, encoder: EncoderConfig, dtype: jnp.dtype) -> None:
        size = config.hidden_size
        self.dense = declare((size, size), (None, None), dtype)
        self.dense_bias = declare((size,), (None,), dtype) if encoder.head_bias else None
        self.norm = LayerNorms(1, size, config.norm_eps, dtype, bias=encoder.norm_bias) if encoder.head == "gelu" else None
        self.out = declare((size, config.labels), (None, None), dtype)
        self.out_bias = declare((config.labels,), (None,), dtype)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """hidden[R, E] to float32[R, labels]."""
        x = _product(hidden.astype(jnp.float32), self.dense[...])
        if self.dense_bias is not None:
            x += self.dense_bias[...].astype(jnp.float32)[None]
        x = jnp.tanh(x) if self.norm is None else self.norm(0, jax.nn.gelu(x, approximate=False))
        return _product(x, self.out[...]) + self.out_bias[...].astype(jnp.float32)[None]


def _product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    return jnp.dot(x, matrix.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
