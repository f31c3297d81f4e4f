"""From tokens to activations and from activations to logits.

Both tables are divided over the vocabulary, which is padded with zeros to a multiple of the shards; no token has a
padded row, and padded columns of the logits are -inf, so that each device keeps its own part of the logits.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.config import DecoderConfig, Scales
from jaxserve.models.parameter import HEAD, TABLE, declare
from jaxserve.models.shards import padded_vocab
from pallas_kernels.matmul import matmul


class Embedding(nnx.Module):
    """The embedding table [V, E], padded."""

    def __init__(self, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> None:
        self.vocab_size, self.scales = config.vocab_size, config.scales
        rows = padded_vocab(config.vocab_size, shards)
        self.table = declare((rows, config.hidden_size), ("vocab", "embed"), dtype, TABLE if config.tie_embeddings else None)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """tokens[T] int32 below vocab_size to their rows [T, E], scaled."""
        rows = TABLE.matrix(self.table).take(tokens)
        return rows if self.scales.embedding == 1.0 else rows * jnp.asarray(self.scales.embedding, rows.dtype)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """hidden[R, E] to float32[R, padded V] by the table itself (tied embeddings, Press and Wolf 2017)."""
        return _finished(matmul(hidden, TABLE.matrix(self.table)), self.vocab_size, self.scales)


class Head(nnx.Module):
    """A matrix of its own for the logits: [E, V], padded."""

    def __init__(self, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> None:
        self.vocab_size, self.scales = config.vocab_size if config.fed is None else config.fed.vocab_size, config.scales
        columns = padded_vocab(self.vocab_size, shards)
        self.kernel = declare((config.hidden_size, columns), ("embed", "vocab"), dtype, HEAD)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """hidden[R, E] to float32[R, padded V]."""
        return _finished(matmul(hidden, HEAD.matrix(self.kernel)), self.vocab_size, self.scales)


def no_logits(hidden: jax.Array, shards: int) -> jax.Array:
    """Of a model that chooses nothing, in the place of hidden[R, E]'s logits: they are of one token."""
    return jnp.zeros((hidden.shape[0], padded_vocab(1, shards)), jnp.float32)


def _finished(logits: jax.Array, vocab_size: int, scales: Scales) -> jax.Array:
    """Scaled, capped, and -inf where no token is."""
    if scales.logits != 1.0:
        logits = logits * scales.logits
    if scales.logits_cap is not None:
        logits = scales.logits_cap * jnp.tanh(logits / scales.logits_cap)
    if logits.shape[1] == vocab_size:
        return logits
    token = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    return jnp.where(token < vocab_size, logits, -jnp.inf)
