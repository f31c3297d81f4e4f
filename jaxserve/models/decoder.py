"""The decoder: embedding, layers, final norm, logits."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.attention import Attend, Attention, ScaledQueries, SharedChoices, SharedKeys
from jaxserve.models.config import APART_NORMS, DecoderConfig
from jaxserve.models.delta_net import GatedDeltaNet
from jaxserve.models.dense import dense_layers, through
from jaxserve.models.dense_recurrence import dense_recur
from jaxserve.models.embedding import Embedding, Head, no_logits
from jaxserve.models.experts import ExpertDispatch, Experts, dispatch_all
from jaxserve.models.fed import FedInput, JoinedInput, entry_of
from jaxserve.models.latent_attention import LatentAttention
from jaxserve.models.layer_input import LayerInput, LayerInputs
from jaxserve.models.mamba import MambaMixer
from jaxserve.models.mlp import GatedMLP, mlp_of
from jaxserve.models.norm import LayerScales, Norms
from jaxserve.models.parameter import Parameter
from jaxserve.models.positions import RopeConfig
from jaxserve.models.recurrence import Recur
from jaxserve.models.recurrent import DeltaNet, Mamba2, ShortConv
from jaxserve.models.rope import query_factors, rotation
from jaxserve.models.score import Score
from jaxserve.models.short_conv import ShortConvMixer
from jaxserve.models.ungated_mlp import MLP
from pallas_kernels.rotate_and_write import Rotation

RECURRENT = (GatedDeltaNet, MambaMixer, ShortConvMixer)
"""What keeps a state of fixed size a sequence, in the place of attention."""


class Stream(NamedTuple):
    """The residual stream [T, E], without what the last block adds: the norm that comes next may add it as it reads both."""

    x: jax.Array
    added: jax.Array | None = None

    def total(self) -> jax.Array:
        return self.x if self.added is None else self.x + self.added


class Layer(nnx.Module):
    """Attention and MLP, each normalised before, after or on both sides, and added to the residual stream; some have no MLP.

    What a model has in the place of attention in some layers goes by its name.
    """

    def __init__(self, config: DecoderConfig, layer: int, shards: int, dtype: jnp.dtype) -> None:
        numbers = {name: number for number, (at, name) in enumerate(config.layer_norms) if at == layer}  # in Norms
        self.attention_norm, self.attention_out_norm = numbers.get("attention_norm"), numbers.get("attention_out_norm")
        self.mlp_norm, self.mlp_out_norm = numbers.get("mlp_norm"), numbers.get("mlp_out_norm")
        self.attention = _attention(config, layer, shards, dtype)
        self.mlp = _mlp(config, layer, shards, dtype)
        self.apart = tuple(numbers.get(name) for name in APART_NORMS)
        self.input_norm = numbers.get("layer_input_norm")
        self.input = LayerInput(config, shards, dtype) if config.layer_input else None
        self.parallel = config.norms == "parallel"
        self.residual = config.scales.residual

    def __call__(
        self,
        stream: Stream,
        norms: Norms,
        rope: Rotation | None,
        attend: Attend,
        dispatch: ExpertDispatch,
        given: jax.Array | None = None,
        recur: Recur = dense_recur,
    ) -> Stream:
        """The residual stream after this layer; `given` [T, N] is what it is given of the tokens besides, if the model does."""
        x, normed = norms.before_products(self.attention_norm, *stream, self._first())
        if isinstance(self.attention, RECURRENT):
            attended = self.attention(normed, recur)
        else:
            attended = self.attention(normed, rope, attend)
        if self.parallel:
            assert isinstance(self.mlp, GatedMLP), "no family has experts beside attention"
            return Stream(x, self._scaled(attended + self.mlp(normed)))
        after = self._after(x, attended, norms, dispatch)
        if self.input is None or given is None:
            return after
        x = after.total()
        return Stream(x, norms(self.input_norm, self.input(x, given)))

    def fed(
        self, x: jax.Array, embedded: jax.Array, entry: FedInput, norms: Norms, rope: Rotation | None, attend: Attend
    ) -> Stream:
        """The residual stream after the layer of an EAGLE-3 head, of hidden states x[T, E] and the tokens after them."""
        normed = norms(self.attention_norm, x)
        first = normed if entry.norm_first else x
        assert not isinstance(self.attention, RECURRENT), "draft heads have attention"
        return self._after(first, self.attention(entry.beside(embedded, normed), rope, attend), norms, dispatch_all)

    def _after(self, x: jax.Array, attended: jax.Array, norms: Norms, dispatch: ExpertDispatch) -> Stream:
        attended = self._scaled(norms(self.attention_out_norm, attended))
        if self.mlp is None:
            return Stream(x, attended)
        if isinstance(self.mlp, Experts) and self.mlp.experts.apart:
            x, mlp = self._apart(self.mlp, x, attended, norms, dispatch)
        elif isinstance(self.mlp, Experts):
            x, plain = norms.of_sum(self.mlp_norm, x, attended)
            mlp = self.mlp(plain, dispatch)
        else:
            x, normed = norms.before_products(self.mlp_norm, x, attended, self.mlp.first)
            mlp = self.mlp(normed)
        return Stream(x, self._scaled(norms(self.mlp_out_norm, mlp)))

    def _apart(
        self, mlp: Experts, x: jax.Array, attended: jax.Array, norms: Norms, dispatch: ExpertDispatch
    ) -> tuple[jax.Array, jax.Array]:
        """The residual stream before the MLP, and what this makes of it: the shared expert and the routed ones, side by side."""
        assert mlp.shared is not None, "what the others are apart from"
        shared_out, routed_in, routed_out = self.apart
        x, normed = norms.before_products(self.mlp_norm, x, attended, mlp.shared.first)
        return x, norms(shared_out, mlp.shared(normed)) + norms(routed_out, mlp(norms(routed_in, x), dispatch, x))

    def _first(self) -> tuple[Parameter, ...]:
        """What multiplies what the attention's norm makes."""
        if self.parallel and isinstance(self.mlp, GatedMLP):
            return (*self.attention.first, *self.mlp.first)
        return self.attention.first

    def _scaled(self, block: jax.Array) -> jax.Array:
        return block if self.residual == 1.0 else block * jnp.asarray(self.residual, block.dtype)


def _attention(
    config: DecoderConfig, layer: int, shards: int, dtype: jnp.dtype
) -> Attention | LatentAttention | GatedDeltaNet | MambaMixer | ShortConvMixer:
    match config.recurrent_of(layer):
        case DeltaNet() as net:
            return GatedDeltaNet(config, net, layer, shards, dtype)
        case Mamba2() as mamba:
            return MambaMixer(config, mamba, layer, shards, dtype)
        case ShortConv() as conv:
            return ShortConvMixer(config, conv, layer, shards, dtype)
    if config.latent is not None:
        return LatentAttention(config, config.latent, layer, shards, dtype)
    return Attention(config, layer, shards, dtype)


def _mlp(config: DecoderConfig, layer: int, shards: int, dtype: jnp.dtype) -> GatedMLP | MLP | Experts | None:
    if not config.has_mlp(layer):
        return None
    if (experts := config.experts_of(layer)) is not None:
        return Experts(config, experts, layer, shards, dtype)
    return mlp_of(replace(config, ffn_size=config.ffn_of(layer)), shards, dtype)


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
        self.inputs = LayerInputs(config, shards, dtype) if config.layer_input else None
        self.layer_scales = LayerScales(config, dtype) if config.layer_scales else None
        self.head = None if config.tie_embeddings else Head(config, shards, dtype)
        self.entry = entry_of(config, dtype)
        self.goes_on_normed = config.fed is not None and config.fed.normed_on
        self.score = Score(config, dtype) if config.labels else None
        self.dense = dense_layers(config.dense, dtype)

    def hidden(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        attend: Attend,
        dispatch: ExpertDispatch = dispatch_all,
        recur: Recur = dense_recur,
    ) -> jax.Array:
        """Activations after the final norm.

        Args:
            tokens: int32[T], below vocab_size.
            positions: int32[T], each token's position in its own sequence.
            attend: called once a layer, in order.
            dispatch: called in every layer with experts, in order; where one device has all of them, the default will do.
            recur: called in layers with states of fixed size, in order; the default knows one whole sequence.

        Returns:
            [T, E] in the parameters' dtype.
        """
        return self.tapped(tokens, positions, attend, dispatch, (), recur)[0]

    def tapped(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        attend: Attend,
        dispatch: ExpertDispatch,
        taps: tuple[int, ...],
        recur: Recur = dense_recur,
    ) -> tuple[jax.Array, jax.Array | None]:
        """The same, and what goes into some of the layers, side by side: [T, E * taps]; None for no taps.

        A tap behind the last layer is the result itself.
        """
        stream = Stream(self.embedding(tokens))
        config = self.config
        given = None if self.inputs is None else self.inputs(tokens, stream.x)
        attend = self.attending(attend, positions)
        if config.shares_keys:
            attend = SharedKeys(attend, frozenset(config.kv_sources))
        if config.shares_choices:
            attend = SharedChoices(attend)
        ropes = {kind: rotation(*kind, positions) for kind in dict.fromkeys(map(self._rope, range(config.num_layers))) if kind}
        found = {}
        for layer in range(config.num_layers):
            if layer in taps:
                found[layer] = stream.total()
            kind, own = self._rope(layer), None if given is None else given[:, layer]
            stream = self.after(layer, stream, None if kind is None else ropes[kind], attend, dispatch, own, recur)
        hidden = found[config.num_layers] = self.norms(self.norms.final, stream.total())
        return hidden, jnp.concatenate([found[layer] for layer in taps], axis=1) if taps else None

    def attending(self, attend: Attend, positions: jax.Array) -> Attend:
        """What layers are to attend with, for queries at positions[T]."""
        scale = self.config.query_scale
        if scale is None:
            return attend
        layers = [layer for layer, rope in enumerate(self.config.ropes) if rope is None or not scale.unrotated]
        return ScaledQueries(attend, query_factors(scale, positions), layers)

    def after(
        self,
        layer: int,
        stream: Stream,
        rope: Rotation | None,
        attend: Attend,
        dispatch: ExpertDispatch,
        given: jax.Array | None = None,
        recur: Recur = dense_recur,
    ) -> Stream:
        """The residual stream after a layer, with an `attend` from `attending`; see `Layer`."""
        stream = self.layers[str(layer)](stream, self.norms, rope, attend, dispatch, given, recur)
        return stream if self.layer_scales is None else Stream(self.layer_scales(layer, stream.total()))

    def _rope(self, layer: int) -> tuple[RopeConfig, int] | None:
        """The rotary embedding of a layer, and D; None for none."""
        rope = self.config.ropes[layer]
        return None if rope is None else (rope, self.config.heads_of(layer).head_dim)

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
        normed = self.norms(self.norms.final, stream.total())
        return normed, normed if self.goes_on_normed else stream.total()

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
