"""How a draft head takes in the hidden states of its target (EAGLE-3, Li et al. 2025, https://arxiv.org/abs/2503.01840)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig, Fed
from jaxserve.models.norm import RMSNorm
from jaxserve.models.parameter import FED, declare
from pallas_kernels.matmul import matmul


class FedInput(nnx.Module):
    """From hidden states of several of the target's layers to one, and what the attention sees of it and of the next token."""

    def __init__(self, config: DecoderConfig, fed: Fed, dtype: jnp.dtype) -> None:
        self.kernel = declare((fed.size, config.hidden_size), ("embed", None), dtype, FED)
        self.embed_norm = RMSNorm(config.hidden_size, "embed", config, dtype)
        self.norm_first = fed.norm_first

    def hidden(self, tapped: jax.Array) -> jax.Array:
        """tapped[T, fed.size] to [T, E]."""
        return matmul(tapped, FED.matrix(self.kernel)).astype(tapped.dtype)

    def beside(self, embedded: jax.Array, normed: jax.Array) -> jax.Array:
        """What is projected to queries, keys and values: [T, 2E] of embeddings and normalised hidden states [T, E]."""
        return jnp.concatenate([self.embed_norm(embedded), normed], axis=1)
