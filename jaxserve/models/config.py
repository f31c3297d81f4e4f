"""What a decoder is: every number and choice that its forward pass and its weights depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from jaxserve.models.encoder_config import EncoderConfig
from jaxserve.models.latent import Indexer, Latent
from jaxserve.models.positions import QueryScale, RopeConfig
from jaxserve.models.recurrent import Recurrent
from jaxserve.models.recurrent import parameters as recurrent_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Constants that a family multiplies with, or bounds by; the defaults change nothing.

    Attributes:
        embedding: multiplies the embeddings.
        attention: multiplies the scores; None for 1 / sqrt(D).
        attention_cap: scores become cap * tanh(score / cap); None for no cap.
        residual: multiplies what each block adds to the residual stream.
        logits: multiplies the logits.
        logits_cap: the same as attention_cap for logits, after their factor.
    """

    embedding: float = 1.0
    attention: float | None = None
    attention_cap: float | None = None
    residual: float = 1.0
    logits: float = 1.0
    logits_cap: float | None = None


UNSCALED = Scales()


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a token chooses its experts.

    Attributes:
        score: what makes the router's logits the experts' scores.
        normalize: the weights of the chosen experts are divided by their sum.
        scale: multiplies the weights, after that.
        bias: the router's projection adds a bias.
        correction: a stored bias is added to the scores for the choice alone, not for the weights.
        groups: neighbouring experts form so many groups of one size.
        active_groups: only experts of that many groups, the best ones, can be chosen.
        group_score: what makes a group good: its best score, or the sum of its best two.
        of_inputs: the weights multiply what the chosen experts are given, not what they make.
        scaled: the router has a norm of its own with a stored scale, and each expert's weight is multiplied by a stored number.
    """

    score: Literal["softmax", "sigmoid"] = "softmax"
    normalize: bool = True
    scale: float = 1.0
    bias: bool = False
    correction: bool = False
    groups: int = 1
    active_groups: int = 1
    group_score: Literal["max", "top2"] = "max"
    of_inputs: bool = False
    scaled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture-of-experts MLP of some layers.

    Attributes:
        count: X, routed experts of a layer.
        active: how many of them a token visits.
        ffn_size: F of one expert.
        layers: one entry a layer: whether it has experts; the others have a dense MLP.
        routing: who visits whom.
        shared_ffn_size: F of the expert that every token visits; 0 for none.
        shared_gate: the shared expert's output is multiplied by a sigmoid of a projection of its input.
        apart: the shared expert and the routed ones together each have norms of their own, before and after.
        latent_size: numbers of a token that routed experts see and make, between projections that all of them share; 0 for E.
    """

    count: int
    active: int
    ffn_size: int
    layers: tuple[bool, ...]
    routing: Routing
    shared_ffn_size: int = 0
    shared_gate: bool = False
    apart: bool = False
    latent_size: int = 0

    def parameters(self, embed: int, *, gated: bool, bias: bool) -> int:
        """Weights of one layer, the router's included; `bias` if each expert's projections add one."""
        routing = self.routing
        router = self.count * (embed + routing.bias + routing.correction + routing.scaled) + routing.scaled * embed
        inner = 1 + gated
        width = self.latent_size or embed
        each = (inner + 1) * width * self.ffn_size + bias * (inner * self.ffn_size + width)
        shared = (inner + 1) * embed * self.shared_ffn_size + self.shared_gate * embed
        return router + self.count * each + shared + 2 * embed * self.latent_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The keys and values of a layer, where layers differ in them.

    Attributes:
        kv_heads, head_dim: K, D.
        values_are_keys: one projection makes both; what is done to them afterwards differs.
    """

    kv_heads: int
    head_dim: int
    values_are_keys: bool = False

    @property
    def columns(self) -> int:
        """What is projected to keys and values."""
        return (1 if self.values_are_keys else 2) * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNames:
    """What a checkpoint calls the tensors of a module for multi-token prediction.

    Attributes:
        begin: with which they all do.
        layer: of its layer, without a dot behind it.
        projection, embed_norm, hidden_norm, final_norm: of what is around it, without ".weight".
        embedding, head: of its own copies of what it shares with the target, with ".weight"; None where there never are any.
    """

    begin: str
    layer: str
    projection: str
    embed_norm: str
    hidden_norm: str
    final_norm: str
    embedding: str | None = None
    head: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """What a draft head is fed besides tokens: hidden states of the target, which it goes on from.

    Attributes:
        size: numbers a token, of several layers side by side.
        taps: the target's layers whose inputs they are; the number of its layers for what its final norm makes.
        vocab_size: tokens that it can guess: a part of the target's vocabulary.
        norm_first: whether the residual stream begins with the normalised hidden state.
        own_embedding, own_head: whether its checkpoint has a table of embeddings, and a matrix for logits; otherwise it has the
            target's. EAGLE-3 heads always have the latter.
        module: of a module for multi-token prediction (DeepSeek-AI 2024) its tensors' names: a projection joins hidden state and
            embedding to one stream, and a layer as the target's follows. None of an EAGLE-3 head (Li et al. 2025), whose layer's
            attention sees both.
        normed_on: whether it goes on from what its final norm makes, rather than from what that is made of.
    """

    size: int
    taps: tuple[int, ...]
    vocab_size: int
    norm_first: bool = False
    own_embedding: bool = True
    own_head: bool = True
    module: ModuleNames | None = None
    normed_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConfig:
    """A layer behind the pooled hidden state, as a module of sentence-transformers has it.

    Attributes:
        folder: of its files, in the checkpoint's directory.
        inputs, outputs: numbers of a vector before and after it.
        bias: whether it adds one.
        activation: of what it makes; None for none.
    """

    folder: str
    inputs: int
    outputs: int
    bias: bool
    activation: Literal["tanh"] | None


LAYER_NORMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "before": ("attention_norm", "mlp_norm"),
        "after": ("attention_out_norm", "mlp_out_norm"),
        "around": ("attention_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm"),
        "parallel": ("attention_norm",),
    }
)
"""By `DecoderConfig.norms`: the norm before or after each block of a layer; of parallel blocks, before both."""
APART_NORMS = ("shared_out_norm", "experts_norm", "experts_out_norm")
"""Of a layer whose experts have norms apart, besides: `mlp_norm` is of the shared expert, `mlp_out_norm` of the sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder-only transformer with RMSNorm, rotary positions, grouped-query attention and a gated MLP.

    Attributes:
        architecture: the name in `architectures` of config.json.
        vocab_size: V, columns of the logits.
        hidden_size: E.
        num_layers: L.
        num_heads, num_kv_heads, head_dim: H, K, D; H is a multiple of K, and H*D need not equal E.
        ffn_size: F.
        norm_eps: added to the mean square in RMSNorm.
        norm_offset: added to the weights of every RMSNorm (Gemma stores them less 1).
        layer_norm: norms over E are LayerNorm without a bias (Ba et al. 2016); those of heads stay RMSNorm.
        norms: whether a block's input is normalised, its output before it joins the residual stream, or both. Of "parallel" both
            blocks of a layer read what one norm makes, and what they make is added together.
        ropes: one entry a layer: its rotary embedding; None for a layer that knows no positions.
        tie_embeddings: the logits use the embedding table instead of a matrix of their own.
        qkv_bias, output_bias, mlp_bias: which projections add a bias.
        qk_norm: queries and keys are normalised before rotation, per head or over all heads together; "rotated" for per head,
            without stored scales, in layers that know positions; None for not at all.
        activation: of the MLP's gate; "swiglu_clamped" is gpt-oss's, which bounds gate and up and adds 1 to up.
        gated: whether MLPs and experts have a gate; without one the activation is of all that goes up.
        experts: which layers have experts instead of an MLP of `ffn_size`, and how they are chosen; None for a dense model.
        latent: the attention's projections, where it caches a latent; None where it caches keys and values.
        sinks: each query head has a logit of its own that every token attends to, without a value.
        scales: constant factors and soft caps.
        windows: one entry a layer: how many of the latest positions a token sees, itself included; None for all. As many to the
            other side if it is `bidirectional`.
        chunked: windows are chunks: a token sees those of its own, of as many positions, alone (Llama 4).
        max_position_embeddings: longest sequence the model is defined for.
        dtype: name of the checkpoint's dtype.
        eos_token_ids: tokens that end a sequence.
        draft_layers: how many layers checkpoints may have behind the last one, to guess further tokens (multi-token prediction,
            Gloeckle et al. 2024); they are no part of this decoder.
        fed: the decoder is a draft head of one layer; None for a model of its own.
        labels: outputs of a head that classifies, which the checkpoint has in the place of one for logits; 0 for none.
        has_logits: whether tokens can be chosen; a model that only pools has no logits.
        dense: layers behind the pooled hidden state of an embedding, in order.
        encoder: what an encoder has in other places than a decoder; None for a decoder.
        bidirectional: whether tokens see those behind them, too. Nothing is cached then: a prompt is computed in one step.
        recurrent: which layers keep a state of fixed size a sequence in the place of attention; None for none.
        output_gate: what a head attends to is multiplied by the sigmoid of a projection of its own.
        heads: one entry a layer, where layers differ in keys and values; empty where all have `num_kv_heads` of `head_dim`.
        kv_sources: one entry a layer: whose keys and values it attends to, its own or those of a layer before it; empty where
            all have their own.
        value_norm: values are normalised per head, without a stored scale.
        ffn_sizes: one entry a layer, where layers differ in F, 0 for no MLP; empty where all have `ffn_size`.
        layer_input: numbers of each token that every layer is given besides, of a table of embeddings of its own (per-layer
            embeddings, Gemma Team 2025); 0 for none.
        layer_scales: the residual stream is multiplied by a stored number behind each layer.
        query_scale: how queries are scaled with their positions; None for not at all.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    norm_eps: float
    norm_offset: float = 0.0
    layer_norm: bool = False
    norms: Literal["before", "after", "around", "parallel"] = "before"
    ropes: tuple[RopeConfig | None, ...]
    tie_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: Literal["head", "all", "rotated"] | None
    activation: Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "swiglu_clamped"]
    experts: Experts | None = None
    latent: Latent | None = None
    sinks: bool = False
    scales: Scales = UNSCALED
    windows: tuple[int | None, ...]
    chunked: bool = False
    max_position_embeddings: int
    dtype: str
    eos_token_ids: tuple[int, ...]
    draft_layers: int = 0
    fed: Fed | None = None
    labels: int = 0
    has_logits: bool = True
    bidirectional: bool = False
    dense: tuple[DenseConfig, ...] = ()
    encoder: EncoderConfig | None = None
    recurrent: Recurrent | None = None
    output_gate: bool = False
    heads: tuple[Heads, ...] = ()
    kv_sources: tuple[int, ...] = ()
    value_norm: bool = False
    gated: bool = True
    ffn_sizes: tuple[int, ...] = ()
    layer_input: int = 0
    layer_scales: bool = False
    query_scale: QueryScale | None = None

    @property
    def embedding_size(self) -> int:
        """Numbers of an embedding."""
        return self.dense[-1].outputs if self.dense else self.hidden_size

    @property
    def cache_windows(self) -> tuple[int | None, ...]:
        """One entry a layer that has keys and values of its own: how many of the latest positions its cache must have."""
        own = [layer for layer in range(self.num_layers) if self._keeps_keys(layer)]
        return (None,) * len(own) if self.bidirectional else tuple(self.windows[layer] for layer in own)

    @property
    def cache_numbers(self) -> tuple[int, ...]:
        """One entry a layer: which of `cache_windows` is of the keys and values that it attends to; -1 if it attends to none."""
        layers = range(self.num_layers)
        own = [layer for layer in layers if self._keeps_keys(layer)]
        return tuple(own.index(self.kv_source(layer)) if self.recurrent_of(layer) is None else -1 for layer in layers)

    def _keeps_keys(self, layer: int) -> bool:
        return self.recurrent_of(layer) is None and self.kv_source(layer) == layer

    @property
    def shares_keys(self) -> bool:
        """Whether layers attend to keys and values of others."""
        return any(source != layer for layer, source in enumerate(self.kv_sources))

    @property
    def shares_choices(self) -> bool:
        """Whether layers attend to the tokens that others chose."""
        return self.latent is not None and self.latent.indexer is not None and not all(self.latent.indexer.layers)

    def indexer_of(self, layer: int) -> Indexer | None:
        """What chooses the tokens that a layer attends to, of those that choose themselves."""
        return None if self.latent is None else self.latent.indexer_of(layer)

    def kv_source(self, layer: int) -> int:
        """The layer whose keys and values one attends to."""
        return self.kv_sources[layer] if self.kv_sources else layer

    def heads_of(self, layer: int) -> Heads:
        return self.heads[layer] if self.heads else Heads(kv_heads=self.num_kv_heads, head_dim=self.head_dim)

    def seen_by(self, layer: int) -> dict[str, int | None]:
        """What a token of a layer sees, as `AttentionOptions` say it."""
        return {"chunk" if self.chunked else "window": self.windows[layer]}

    def ffn_of(self, layer: int) -> int:
        """F of a layer's dense MLP; 0 for a layer without one."""
        return self.ffn_sizes[layer] if self.ffn_sizes else self.ffn_size

    @property
    def num_choices(self) -> int:
        """Tokens that logits are of; one, which says nothing, without logits."""
        return self.vocab_size if self.has_logits else 1

    @property
    def attention_inputs(self) -> int:
        """Numbers that queries, keys and values are projected from."""
        return self.hidden_size * (1 if self.fed is None or self.fed.module is not None else 2)

    @property
    def layer_norms(self) -> tuple[tuple[int, str], ...]:
        """The layer and the name of each norm over E, but the final one, in the order in which they are numbered."""
        apart = APART_NORMS if self.experts is not None and self.experts.apart else ()
        names = (*LAYER_NORMS[self.norms], *apart, *(("layer_input_norm",) if self.layer_input else ()))
        layers = range(self.num_layers)
        return tuple((at, name) for at in layers for name in names if self.has_mlp(at) or not name.startswith("mlp"))

    def has_mlp(self, layer: int) -> bool:
        """Whether a layer has an MLP, or experts."""
        return self.ffn_of(layer) > 0 or self.experts_of(layer) is not None

    def serving(self, length: int) -> DecoderConfig:
        """The same for an engine whose sequences are no longer than `length`."""
        return replace(self, ropes=tuple(rope and rope.serving(length) for rope in self.ropes))

    def first(self, layers: int) -> DecoderConfig:
        """The same with only its first layers."""
        return self._part(slice(layers))

    def only(self, layer: int) -> DecoderConfig:
        """The same with one of its layers alone."""
        return self._part(slice(layer, layer + 1))

    def _part(self, some: slice) -> DecoderConfig:
        """Some layers alone, which attend to keys and values of no others."""
        experts, recurrent, latent = self.experts, self.recurrent, self.latent
        if experts is not None:
            experts = replace(experts, layers=experts.layers[some]) if any(experts.layers[some]) else None
        if recurrent is not None:
            recurrent = replace(recurrent, layers=recurrent.layers[some]) if any(recurrent.layers[some]) else None
        if latent is not None and latent.indexer is not None:
            latent = replace(latent, indexer=replace(latent.indexer, layers=latent.indexer.layers[some]))
        return replace(
            self,
            num_layers=len(self.windows[some]),
            windows=self.windows[some],
            ropes=self.ropes[some],
            experts=experts,
            recurrent=recurrent,
            latent=latent,
            heads=self.heads[some],
            kv_sources=self.kv_sources[some],
            ffn_sizes=self.ffn_sizes[some],
        )

    def experts_of(self, layer: int) -> Experts | None:
        """The experts of a layer; None if its MLP is dense."""
        return self.experts if self.experts is not None and self.experts.layers[layer] else None

    def recurrent_of(self, layer: int) -> Recurrent | None:
        """What a layer has in the place of attention; None if it has attention."""
        return self.recurrent if self.recurrent is not None and self.recurrent.layers[layer] else None

    @property
    def num_recurrent(self) -> int:
        """How many layers keep a state of fixed size."""
        return 0 if self.recurrent is None else sum(self.recurrent.layers)

    @property
    def num_parameters(self) -> int:
        """Number of weights; a tied embedding table counts once."""
        tables = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2) + self.labels * self.hidden_size
        layers = sum(self._attention_parameters(layer) + self._mlp_parameters(layer) for layer in range(self.num_layers))
        rest = sum(dense.outputs * (dense.inputs + dense.bias) for dense in self.dense)
        if self.encoder is None:
            rest += self.norm_parameters + self.layer_scales * self.num_layers
        else:
            rest += self.encoder.parameters(self.hidden_size, self.num_layers, self.labels)
        inputs = self.num_layers * self.layer_input * (self.vocab_size + 3 * self.hidden_size)  # a projection, and two a layer
        return tables + layers + inputs + rest

    @property
    def norm_parameters(self) -> int:
        """Weights of all norms."""
        heads = sum(self._head_norms(layer) for layer in range(self.num_layers))
        latents = 0 if self.latent is None else (self.num_layers - self.num_recurrent) * self.latent.norms
        indexers = [indexer.norms for layer in range(self.num_layers) if (indexer := self.indexer_of(layer)) is not None]
        states = 0 if self.recurrent is None else self.num_recurrent * self.recurrent.norms
        around = (len(self.layer_norms) + 1) * self.hidden_size
        return heads + latents + sum(indexers) + states + around + self.layer_input

    def _head_norms(self, layer: int) -> int:
        """Weights of a layer's norms of queries and keys."""
        if self.recurrent_of(layer) is not None:
            return 0
        heads, own = self.heads_of(layer), self.kv_source(layer) == layer
        count = {None: 0, "rotated": 0, "head": 1 + own, "all": self.num_heads + heads.kv_heads}[self.qk_norm]
        return count * heads.head_dim

    def _attention_parameters(self, layer: int) -> int:
        if (recurrent := self.recurrent_of(layer)) is not None:
            return recurrent_parameters(recurrent, self.hidden_size)
        embed, sinks = self.hidden_size, self.sinks * self.num_heads
        if self.latent is not None:
            indexer = self.indexer_of(layer)
            index = 0 if indexer is None else indexer.parameters(embed, self.latent.query_rank or embed)
            return self.latent.parameters(embed, self.num_heads) + index + sinks
        heads = self.heads_of(layer)
        query = self.num_heads * heads.head_dim
        qkv = (1 + self.output_gate) * query + (heads.columns if self.kv_source(layer) == layer else 0)
        return embed * qkv + query * embed + self.qkv_bias * qkv + self.output_bias * embed + sinks

    def _mlp_parameters(self, layer: int) -> int:
        embed, ffn, experts = self.hidden_size, self.ffn_of(layer), self.experts_of(layer)
        if experts is not None:
            return experts.parameters(embed, gated=self.gated, bias=self.mlp_bias)
        inner = 1 + self.gated
        return (inner + 1) * embed * ffn + self.mlp_bias * (inner * ffn + embed)
