"""The head of a model that classifies or judges: a matrix from the pooled hidden state to an output a class."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.parameter import declare


class Score(nnx.Module):
    """Few numbers of which each matters: they stay as the checkpoint has them, on every device."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        self.kernel = declare((config.hidden_size, config.labels), (None, None), dtype)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """hidden[R, E] to float32[R, labels]."""
        return jnp.dot(hidden.astype(jnp.float32), self.kernel[...].astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
