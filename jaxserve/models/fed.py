"""How a draft head takes in the hidden states of its target, and the tokens that came after them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig, Fed
from jaxserve.models.norm import RMSNorm
from jaxserve.models.parameter import FED, declare
from pallas_kernels.matmul import matmul


class FedInput(nnx.Module):
    """EAGLE-3's (Li et al. 2025, https://arxiv.org/abs/2503.01840).

    From hidden states of several of the target's layers to one, and what the attention sees of it and of the next token.
    """

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


class JoinedInput(nnx.Module):
    """That of a module for multi-token prediction (DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437, section 2.2).

    A projection of the next token's embedding and the hidden state, both normalised, is what its layer begins with.
    """

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype) -> None:
        embed = config.hidden_size
        self.kernel = declare((2 * embed, embed), ("embed", None), dtype, FED)
        self.embed_norm, self.hidden_norm = (RMSNorm(embed, "embed", config, dtype) for _ in range(2))

    def hidden(self, tapped: jax.Array) -> jax.Array:
        """The target's hidden states [T, E], as they are."""
        return tapped

    def joined(self, embedded: jax.Array, x: jax.Array) -> jax.Array:
        """Embeddings and hidden states [T, E] each to the residual stream [T, E]."""
        both = jnp.concatenate([self.embed_norm(embedded), self.hidden_norm(x)], axis=1)
        return matmul(both, FED.matrix(self.kernel)).astype(x.dtype)


def entry_of(config: DecoderConfig, dtype: jnp.dtype) -> FedInput | JoinedInput | None:
    """How a decoder is fed; None for a model of its own."""
    if config.fed is None:
        return None
    return FedInput(config, config.fed, dtype) if config.fed.module is None else JoinedInput(config, dtype)
