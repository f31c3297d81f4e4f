"""Layers behind the pooled hidden state of an embedding, as sentence-transformers has them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DenseConfig
from jaxserve.models.parameter import declare


class Dense(nnx.Module):
    """Few numbers beside the model's: they stay as the checkpoint has them, on every device."""

    def __init__(self, config: DenseConfig, dtype: jnp.dtype) -> None:
        self.kernel = declare((config.inputs, config.outputs), (None, None), dtype)
        self.bias = declare((config.outputs,), (None,), dtype) if config.bias else None
        self.activation = config.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """float32[R, inputs] to float32[R, outputs]."""
        y = jnp.dot(x, self.kernel[...].astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
        if self.bias is not None:
            y += self.bias[...].astype(jnp.float32)[None]
        return jnp.tanh(y) if self.activation == "tanh" else y


def dense_layers(configs: Sequence[DenseConfig], dtype: jnp.dtype) -> nnx.Dict[Dense] | None:
    """None for none."""
    return nnx.Dict({str(place): Dense(config, dtype) for place, config in enumerate(configs)}) if configs else None


def through(layers: nnx.Dict[Dense] | None, pooled: jax.Array) -> jax.Array:
    """What the layers make of pooled[R, E], one after another: float32[R, outputs of the last]."""
    x = pooled.astype(jnp.float32)
    for layer in () if layers is None else layers.values():
        x = layer(x)
    return x
