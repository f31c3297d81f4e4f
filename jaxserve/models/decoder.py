"""The decoder: embedding, layers, final norm, logits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.attention import Attend, Attention
from jaxserve.models.config import DecoderConfig
from jaxserve.models.dense import dense_layers, through
from jaxserve.models.embedding import Embedding, Head, no_logits
from jaxserve.models.experts import ExpertDispatch, Experts, dispatch_all
from jaxserve.models.fed import FedInput, JoinedInput, entry_of
from jaxserve.models.latent_attention import LatentAttention
from jaxserve.models.mlp import GatedMLP
from jaxserve.models.norm import Norms
from jaxserve.models.parameter import Projected
from jaxserve.models.rope import rotation
from jaxserve.models.score import Score
from pallas_kernels.rotate_and_write import Rotation


class Stream(NamedTuple):
    """The residual stream [T, E], without what the last block adds: the norm that comes next may add it as it reads both."""

    x: jax.Array
    added: jax.Array | None = None

    def total(self) -> jax.Array:
        return self.x if self.added is None else self.x + self.added


class Layer(nnx.Module):
    """Attention and MLP, each normalised before, after or on both sides, and added to the residual stream."""

    def __init__(self, config: DecoderConfig, layer: int, shards: int, dtype: jnp.dtype) -> None:
        names = config.layer_norms
        numbers = {name: layer * len(names) + place for place, name in enumerate(names)}  # in Norms
        self.attention_norm, self.attention_out_norm = numbers.get("attention_norm"), numbers.get("attention_out_norm")
        self.mlp_norm, self.mlp_out_norm = numbers.get("mlp_norm"), numbers.get("mlp_out_norm")
        latent = config.latent
        self.attention = (
            Attention(config, layer, shards, dtype) if latent is None else LatentAttention(config, latent, layer, shards, dtype)
        )
        experts = config.experts_of(layer)
        self.mlp = GatedMLP(config, shards, dtype) if experts is None else Experts(config, experts, layer, shards, dtype)
        self.residual = config.scales.residual

    def __call__(self, stream: Stream, norms: Norms, rope: Rotation | None, attend: Attend, dispatch: ExpertDispatch) -> Stream:
        """The residual stream after this layer."""
        x, normed = norms.before_products(self.attention_norm, *stream, self.attention.first)
        return self._after(x, normed, norms, rope, attend, dispatch)

    def fed(
        self, x: jax.Array, embedded: jax.Array, entry: FedInput, norms: Norms, rope: Rotation | None, attend: Attend
    ) -> Stream:
        """The residual stream after the layer of an EAGLE-3 head, of hidden states x[T, E] and the tokens after them."""
        normed = norms(self.attention_norm, x)
        first = normed if entry.norm_first else x
        return self._after(first, entry.beside(embedded, normed), norms, rope, attend, dispatch_all)

    def _after(
        self,
        x: jax.Array,
        normed: Projected,
        norms: Norms,
        rope: Rotation | None,
        attend: Attend,
        dispatch: ExpertDispatch,
    ) -> Stream:
        attended = self._scaled(norms(self.attention_out_norm, self.attention(normed, rope, attend)))
        if isinstance(self.mlp, Experts):
            x, plain = norms.of_sum(self.mlp_norm, x, attended)
            mlp = self.mlp(plain, dispatch)
        else:
            x, normed = norms.before_products(self.mlp_norm, x, attended, self.mlp.first)
            mlp = self.mlp(normed)
        return Stream(x, self._scaled(norms(self.mlp_out_norm, mlp)))

    def _scaled(self, block: jax.Array) -> jax.Array:
        return block if self.residual == 1.0 else block * jnp.asarray(self.residual, block.dtype)


class Decoder(nnx.Module):
    """A whole decoder; get one with `binding.bind`.

    Each layer has parameters of its own and a Python loop runs them: a scan over stacked parameters would copy every
    layer's weights at every step.
    """

    def __init__(self, config: DecoderConfig, shards: int, dtype: jnp.dtype) -> None:
        self.config, self.shards = config, shards
        self.embedding = Embedding(config, shards, dtype)
        self.layers = nnx.Dict({str(i): Layer(config, i, shards, dtype) for i in range(config.num_layers)})
        self.norms = Norms(config, dtype)
        self.head = None if config.tie_embeddings else Head(config, shards, dtype)
        self.entry = entry_of(config, dtype)
        self.score = Score(config, dtype) if config.labels else None
        self.dense = dense_layers(config.dense, dtype)

    def hidden(
        self, tokens: jax.Array, positions: jax.Array, attend: Attend, dispatch: ExpertDispatch = dispatch_all
    ) -> jax.Array:
        """Activations after the final norm.

        Args:
            tokens: int32[T], below vocab_size.
            positions: int32[T], each token's position in its own sequence.
            attend: called once a layer, in order.
            dispatch: called in every layer with experts, in order; where one device has all of them, the default will do.

        Returns:
            [T, E] in the parameters' dtype.
        """
        return self.tapped(tokens, positions, attend, dispatch, ())[0]

    def tapped(
        self, tokens: jax.Array, positions: jax.Array, attend: Attend, dispatch: ExpertDispatch, taps: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array | None]:
        """The same, and what goes into some of the layers, side by side: [T, E * taps]; None for no taps.

        A tap behind the last layer is the result itself.
        """
        stream = Stream(self.embedding(tokens))
        config = self.config
        ropes = {rope: rotation(rope, config.head_dim, positions) for rope in dict.fromkeys(config.ropes) if rope is not None}
        found = {}
        for layer, rope in enumerate(config.ropes):
            if layer in taps:
                found[layer] = stream.total()
            stream = self.layers[str(layer)](stream, self.norms, None if rope is None else ropes[rope], attend, dispatch)
        hidden = found[config.num_layers] = self.norms(self.norms.final, stream.total())
        return hidden, jnp.concatenate([found[layer] for layer in taps], axis=1) if taps else None

    def follow(
        self, x: jax.Array, tokens: jax.Array, positions: jax.Array, attend: Attend, dispatch: ExpertDispatch = dispatch_all
    ) -> tuple[jax.Array, jax.Array]:
        """What a draft head makes of hidden states and the tokens that came after them.

        Args:
            x: [T, E], hidden states: of the target, through `entry.hidden`, or what this returned of the token before.
            tokens: int32[T], the tokens after them.
            positions: int32[T], of the hidden states.
            attend: called once.
            dispatch: called once, if the layer has experts.

        Returns:
            Activations after the final norm, from which logits come, and hidden states to go on from: [T, E] each.
        """
        assert self.entry is not None, "a draft head"
        rope = self.config.ropes[0]
        rotated = None if rope is None else rotation(rope, self.config.head_dim, positions)
        layer, embedded = self.layers["0"], self.embedding(tokens)
        if isinstance(self.entry, JoinedInput):
            stream = layer(Stream(self.entry.joined(embedded, x)), self.norms, rotated, attend, dispatch)
        else:
            stream = layer.fed(x, embedded, self.entry, self.norms, rotated, attend)
        return self.norms(self.norms.final, stream.total()), stream.total()

    def embedded(self, pooled: jax.Array) -> jax.Array:
        """What the layers behind it make of pooled[R, E]: float32[R, embedding_size]."""
        return through(self.dense, pooled)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits of hidden[R, E], which `hidden` returned.

        Returns:
            float32[R, padded V], divided over the vocabulary like the table; -inf for padding (see `shards.padded_vocab`). V is
            `num_choices`.
        """
        if not self.config.has_logits:
            return no_logits(hidden, self.shards)
        return self.embedding.logits(hidden) if self.head is None else self.head.logits(hidden)
