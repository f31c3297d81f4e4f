"""An encoder: embedding, layers whose tokens see each other, and the head of one that classifies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.attention import Attend, Attention
from jaxserve.models.config import DecoderConfig
from jaxserve.models.dense import dense_layers, through
from jaxserve.models.embedding import Embedding, no_logits
from jaxserve.models.encoder.norm import LayerNorms
from jaxserve.models.encoder.score import PooledScore
from jaxserve.models.encoder_config import EncoderConfig
from jaxserve.models.experts import ExpertDispatch
from jaxserve.models.mlp import mlp_of
from jaxserve.models.parameter import declare
from jaxserve.models.rope import rotation
from pallas_kernels.rotate_and_write import Rotation

EMBEDDING_NORM = 0


class EncoderLayer(nnx.Module):
    """Attention and MLP. BERT normalises the sum behind each, ModernBERT what goes into each."""

    def __init__(self, config: DecoderConfig, encoder: EncoderConfig, layer: int, shards: int, dtype: jnp.dtype) -> None:
        self.attention = Attention(config, layer, shards, dtype)
        self.mlp = mlp_of(config, shards, dtype)
        self.norms_first = encoder.norms_first
        self.attention_norm, self.mlp_norm = encoder.norms_of(layer)

    def __call__(self, x: jax.Array, norms: LayerNorms, rope: Rotation | None, attend: Attend) -> jax.Array:
        """x[T, E] after this layer."""
        if self.norms_first:
            normed = x if self.attention_norm is None else norms(self.attention_norm, x)
            x = x + self.attention(normed, rope, attend)
            return x + self.mlp(norms(self.mlp_norm, x))
        assert self.attention_norm is not None, "norms behind blocks are in every layer"
        x = norms(self.attention_norm, x + self.attention(x, rope, attend))
        return norms(self.mlp_norm, x + self.mlp(x))


class Encoder(nnx.Module):
    """A whole encoder, called as `Decoder` is; get one with `binding.bind_model`.

    Positions are rows of a table, where there is one; another one tells the second of two texts from the first: it begins behind
    the first `separator`.
    """

    def __init__(self, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> None:
        assert config.encoder is not None, "an encoder"
        encoder = config.encoder
        self.config, self.shards = config, shards
        self.embedding = Embedding(config, shards, dtype)
        tables = {"positions": encoder.positions, "token_types": encoder.token_types}
        self.tables = nnx.Dict(
            {name: declare((rows, config.hidden_size), (None, "embed"), dtype) for name, rows in tables.items() if rows}
        )
        self.layers = nnx.Dict({str(i): EncoderLayer(config, encoder, i, shards, dtype) for i in range(config.num_layers)})
        count = encoder.num_norms(config.num_layers)
        self.norms = LayerNorms(count, config.hidden_size, config.norm_eps, dtype, bias=encoder.norm_bias)
        self.score = PooledScore(config, encoder, dtype) if config.labels else None
        self.dense = dense_layers(config.dense, dtype)

    def tapped(
        self, tokens: jax.Array, positions: jax.Array, attend: Attend, dispatch: ExpertDispatch, taps: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array | None]:
        """See `Decoder.tapped`. Nothing is tapped: no draft follows an encoder."""
        encoder, config = self.config.encoder, self.config
        assert encoder is not None, "an encoder"
        assert not taps, "of a draft's target"
        x = self.embedding(tokens)
        if encoder.positions:
            x += self.tables["positions"][...][positions + encoder.first_position]
        if encoder.token_types:
            x += self.tables["token_types"][...][_token_types(tokens, positions, encoder)]
        x = self.norms(EMBEDDING_NORM, x)
        ropes = {rope: rotation(rope, config.head_dim, positions) for rope in dict.fromkeys(config.ropes) if rope is not None}
        for layer, rope in enumerate(config.ropes):
            x = self.layers[str(layer)](x, self.norms, None if rope is None else ropes[rope], attend)
        return self.norms(encoder.num_norms(config.num_layers) - 1, x) if encoder.norms_first else x, None

    def embedded(self, pooled: jax.Array) -> jax.Array:
        """See `Decoder.embedded`."""
        return through(self.dense, pooled)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """None that say anything."""
        return no_logits(hidden, self.shards)


def _token_types(tokens: jax.Array, positions: jax.Array, encoder: EncoderConfig) -> jax.Array:
    """int32[T]: 0 up to a prompt's first separator, 1 behind it. Prompts are whole: token t's begins at t - positions[t]."""
    if encoder.separator is None or encoder.token_types < 2:
        return jnp.zeros_like(tokens)
    ends = (tokens == encoder.separator).astype(jnp.int32)
    before = jnp.cumsum(ends) - ends
    first = jnp.arange(tokens.shape[0], dtype=jnp.int32) - positions
    return jnp.minimum(before - before[jnp.maximum(first, 0)], 1)
