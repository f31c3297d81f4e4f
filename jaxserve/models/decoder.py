"""The decoder: embedding, layers, final norm, logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.attention import Attend, Attention
from jaxserve.models.config import DecoderConfig
from jaxserve.models.embedding import Embedding, Head
from jaxserve.models.mlp import GatedMLP
from jaxserve.models.norm import RMSNorm
from jaxserve.models.rope import Rotation, rotation


class Layer(nnx.Module):
    """Pre-normalised attention and MLP, each added to the residual stream."""

    def __init__(self, config: DecoderConfig, layer: int, shards: int, dtype: jnp.dtype) -> None:
        self.attention_norm = RMSNorm(config.hidden_size, "embed", config.norm_eps, dtype)
        self.attention = Attention(config, layer, shards, dtype)
        self.mlp_norm = RMSNorm(config.hidden_size, "embed", config.norm_eps, dtype)
        self.mlp = GatedMLP(config, shards, dtype)

    def __call__(self, x: jax.Array, by: Rotation, attend: Attend) -> jax.Array:
        """The residual stream x[T, E] after this layer."""
        x += self.attention(self.attention_norm(x), by, attend)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nnx.Module):
    """A whole decoder; get one with `binding.bind`.

    Each layer has parameters of its own and a Python loop runs them: a scan over stacked parameters would copy every
    layer's weights at every step.
    """

    def __init__(self, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> None:
        self.config = config
        self.embedding = Embedding(config, shards, dtype)
        self.layers = nnx.Dict({str(i): Layer(config, i, shards, dtype) for i in range(config.num_layers)})
        self.final_norm = RMSNorm(config.hidden_size, "embed", config.norm_eps, dtype)
        self.head = None if config.tie_embeddings else Head(config, shards, dtype)

    def hidden(self, tokens: jax.Array, positions: jax.Array, attend: Attend) -> jax.Array:
        """Activations after the final norm.

        Args:
            tokens: int32[T], below vocab_size.
            positions: int32[T], each token's position in its own sequence.
            attend: called once a layer, in order.

        Returns:
            [T, E] in the parameters' dtype.
        """
        x = self.embedding(tokens)
        by = rotation(self.config.rope, self.config.head_dim, positions)
        for layer in range(self.config.num_layers):
            x = self.layers[str(layer)](x, by, attend)
        return self.final_norm(x)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits of hidden[R, E], which `hidden` returned.

        Returns:
            float32[R, padded V], divided over the vocabulary like the table; -inf for padding (see `shards.padded_vocab`).
        """
        return self.embedding.logits(hidden) if self.head is None else self.head.logits(hidden)
