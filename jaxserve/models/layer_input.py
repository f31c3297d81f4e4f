"""Per-layer embeddings (Gemma 3n and 4, Gemma Team 2025): every layer is given a few numbers of each token besides.

They come from a table that has a row of all layers' for each token, and from the token's embedding.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig
from jaxserve.models.mlp import ACTIVATIONS
from jaxserve.models.norm import RMSNorm
from jaxserve.models.parameter import COLUMNS, ROWS, TABLE, declare, project_columns, project_rows
from jaxserve.models.shards import padded_vocab


class LayerInputs(nnx.Module):
    """What all layers are given of a step's tokens.

    `table` [V, L*N] is divided over the vocabulary as that of the embeddings, and padded; `projection` [E, 1, L*N] is whole on
    every device, since a norm over all N of a layer follows.
    """

    def __init__(self, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> None:
        self.layers, self.size = config.num_layers, config.layer_input
        width = self.layers * self.size
        self.table = declare((padded_vocab(config.vocab_size, shards), width), ("vocab", "embed"), dtype)
        self.projection = declare((config.hidden_size, 1, width), ("embed", None, None), dtype, COLUMNS)
        self.norm = RMSNorm(self.size, "embed", config, dtype)

    def __call__(self, tokens: jax.Array, embedded: jax.Array) -> jax.Array:
        """tokens[T] and their embeddings [T, E], scaled as the first layer has them, to [T, L, N]."""
        shape, dtype = (tokens.shape[0], self.layers, self.size), embedded.dtype
        rows = TABLE.matrix(self.table).take(tokens) * jnp.asarray(self.size**0.5, dtype)
        projected = project_columns(embedded, self.projection, None) * jnp.asarray(embedded.shape[1] ** -0.5, dtype)
        both: jax.Array = (self.norm(projected.reshape(shape)) + rows.reshape(shape)) * jnp.asarray(2**-0.5, dtype)
        return both


class LayerInput(nnx.Module):
    """What one layer adds for what it is given: up(activation(gate(x)) * given), `gate` [E, s, N/s] and `up` [s, N/s, E]."""

    def __init__(self, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> None:
        embed, local = config.hidden_size, config.layer_input // shards
        self.activation = config.activation
        self.gate = declare((embed, shards, local), ("embed", "ffn", None), dtype, COLUMNS)
        self.up = declare((shards, local, embed), ("ffn", None, "embed"), dtype, ROWS)

    def __call__(self, x: jax.Array, given: jax.Array) -> jax.Array:
        """x[T, E] and given[T, N] to [T, E], before norm and residual sum."""
        gate = project_columns(x, self.gate, None, rounded=False)
        gated = ACTIVATIONS[self.activation](gate, given.reshape(gate.shape).astype(gate.dtype))
        return project_rows(gated.astype(x.dtype), self.up, None)
