"""What a decoder is: every number and choice that its forward pass and its weights depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding, with every default already filled in.

    Attributes:
        kind: how the frequencies are scaled; "dynamic" is unscaled up to the model's `max_position_embeddings`, which
            is the longest sequence that jaxserve serves of it.
        theta: base of the frequencies.
        factor: context extension factor of "linear", "llama3" and "yarn".
        original_max_position_embeddings: context length of pretraining ("llama3", "yarn", "longrope").
        low_freq_factor, high_freq_factor: bounds of the smoothed band ("llama3").
        beta_fast, beta_slow: rotations that bound the interpolated band ("yarn").
        truncate: whether the band's bounds are rounded outwards to whole dimensions ("yarn").
        attention_factor: multiplies cosine and sine ("yarn", "longrope").
        rotated_dims: how many dimensions of a head are rotated, its first ones; None for all.
        short_factors, long_factors: what each frequency is divided by in sequences that fit the context of pretraining, and
            in a model that serves longer ones ("longrope").
        extended: whether the long factors are in use ("longrope"): all sequences of an engine use the same, since a cached
            key cannot be rotated again.
    """

    kind: RopeKind = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    rotated_dims: int | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    extended: bool = False

    def serving(self, length: int) -> RopeConfig:
        """The same for an engine whose sequences are no longer than `length`."""
        if self.kind != "longrope":
            return self
        return replace(self, extended=length > self.original_max_position_embeddings)


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
    """

    score: Literal["softmax", "sigmoid"] = "softmax"
    normalize: bool = True
    scale: float = 1.0
    bias: bool = False
    correction: bool = False
    groups: int = 1
    active_groups: int = 1
    group_score: Literal["max", "top2"] = "max"


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
    """

    count: int
    active: int
    ffn_size: int
    layers: tuple[bool, ...]
    routing: Routing
    shared_ffn_size: int = 0
    shared_gate: bool = False

    def parameters(self, embed: int, *, bias: bool) -> int:
        """Weights of one layer, the router's included; `bias` if each expert's projections add one."""
        routing = self.routing
        router = self.count * (embed + routing.bias + routing.correction)
        each = 3 * embed * self.ffn_size + bias * (2 * self.ffn_size + embed)
        return router + self.count * each + 3 * embed * self.shared_ffn_size + self.shared_gate * embed


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention (DeepSeek-AI 2024): keys and values of all heads are projections of one short vector a token.

    Attributes:
        query_rank: of the queries' own latent; None if they are projected from the hidden state.
        kv_rank: of the latent that is cached.
        nope_dim, rope_dim: dimensions of a query or key head without positions, and with; all heads share the latter's key.
        value_dim: of a value head.
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def parameters(self, embed: int, heads: int) -> int:
        """Weights of one layer's projections; norms apart."""
        query = heads * (self.nope_dim + self.rope_dim)
        queries = embed * query if self.query_rank is None else self.query_rank * (embed + query)
        down = embed * (self.kv_rank + self.rope_dim)
        return queries + down + self.kv_rank * heads * (self.nope_dim + self.value_dim) + heads * self.value_dim * embed

    @property
    def norms(self) -> int:
        """Weights of one layer's norms of latents."""
        return self.kv_rank + (self.query_rank or 0)


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
        layer: of a module for multi-token prediction (DeepSeek-AI 2024) the number of its layer in the target's checkpoint: a
            projection joins hidden state and embedding to one stream, and a layer as the target's follows. None of an EAGLE-3
            head (Li et al. 2025), whose layer's attention sees both.
    """

    size: int
    taps: tuple[int, ...]
    vocab_size: int
    norm_first: bool = False
    own_embedding: bool = True
    own_head: bool = True
    layer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Where an encoder differs from a decoder: norms are LayerNorms, one of them over the embeddings.

    Attributes:
        positions: rows of a table of positions; 0 for none.
        first_position: the row of the first token.
        token_types: rows of a table that tells the second of two texts from the first; 0 for none.
        separator: the token behind which the second text begins; None if nobody knows.
        norms_first: whether norms are before the blocks and behind the last layer; otherwise behind the sum of each block.
        norm_bias: whether norms add a bias.
        gated: whether MLPs have a gate.
        head: what the layer of a head that classifies ends with: tanh, or GELU and a norm.
        head_bias: whether that layer adds a bias.
    """

    positions: int
    first_position: int
    token_types: int
    separator: int | None = None
    norms_first: bool
    norm_bias: bool
    gated: bool
    head: Literal["tanh", "gelu"]
    head_bias: bool

    def norms_of(self, layer: int) -> tuple[int | None, int]:
        """The numbers of the norms of a layer's attention and of its MLP: the first is that of the embeddings.

        With `norms_first` the first layer's attention has none: what it would normalise is normalised already.
        """
        mlp = 2 * layer + (1 if self.norms_first else 2)
        return (mlp - 1 if layer or not self.norms_first else None), mlp

    def num_norms(self, layers: int) -> int:
        return 1 + 2 * layers

    def parameters(self, embed: int, layers: int, labels: int) -> int:
        """Weights of tables, norms and, with `labels`, of the layer before the one that gives these their scores."""
        norms = self.num_norms(layers) + (labels > 0 and self.head == "gelu")
        head = (embed * (embed + self.head_bias) + labels) if labels else 0
        return (self.positions + self.token_types) * embed + norms * embed * (1 + self.norm_bias) + head


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
    }
)
"""By `DecoderConfig.norms`: the norm before or after each block of a layer."""


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
        norms: whether a block's input is normalised, its output before it joins the residual stream, or both.
        ropes: one entry a layer: its rotary embedding; None for a layer that knows no positions.
        tie_embeddings: the logits use the embedding table instead of a matrix of their own.
        qkv_bias, output_bias, mlp_bias: which projections add a bias.
        qk_norm: queries and keys are normalised before rotation, per head or over all heads together; None for not at all.
        activation: of the MLP's gate; "swiglu_clamped" is gpt-oss's, which bounds gate and up and adds 1 to up.
        experts: which layers have experts instead of an MLP of `ffn_size`, and how they are chosen; None for a dense model.
        latent: the attention's projections, where it caches a latent; None where it caches keys and values.
        sinks: each query head has a logit of its own that every token attends to, without a value.
        scales: constant factors and soft caps.
        windows: one entry a layer: how many of the latest positions a token sees, itself included; None for all. As many to the
            other side if it is `bidirectional`.
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
    norms: Literal["before", "after", "around"] = "before"
    ropes: tuple[RopeConfig | None, ...]
    tie_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: Literal["head", "all"] | None
    activation: Literal["silu", "gelu", "gelu_tanh", "relu", "swiglu_clamped"]
    experts: Experts | None = None
    latent: Latent | None = None
    sinks: bool = False
    scales: Scales = UNSCALED
    windows: tuple[int | None, ...]
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

    @property
    def embedding_size(self) -> int:
        """Numbers of an embedding."""
        return self.dense[-1].outputs if self.dense else self.hidden_size

    @property
    def cache_windows(self) -> tuple[int | None, ...]:
        """One entry a layer: how many of the latest positions its cache must have."""
        return (None,) * self.num_layers if self.bidirectional else self.windows

    @property
    def num_choices(self) -> int:
        """Tokens that logits are of; one, which says nothing, without logits."""
        return self.vocab_size if self.has_logits else 1

    @property
    def attention_inputs(self) -> int:
        """Numbers that queries, keys and values are projected from."""
        return self.hidden_size * (1 if self.fed is None or self.fed.layer is not None else 2)

    @property
    def layer_norms(self) -> tuple[str, ...]:
        """The norms of a layer over E, in the order in which they are numbered."""
        return LAYER_NORMS[self.norms]

    def serving(self, length: int) -> DecoderConfig:
        """The same for an engine whose sequences are no longer than `length`."""
        return replace(self, ropes=tuple(rope and rope.serving(length) for rope in self.ropes))

    def first(self, layers: int) -> DecoderConfig:
        """The same with only its first layers."""
        experts = self.experts and replace(self.experts, layers=self.experts.layers[:layers])
        return replace(self, num_layers=layers, windows=self.windows[:layers], ropes=self.ropes[:layers], experts=experts)

    def only(self, layer: int) -> DecoderConfig:
        """The same with one of its layers alone."""
        experts, one = self.experts, slice(layer, layer + 1)
        if experts is not None:
            experts = replace(experts, layers=experts.layers[one]) if experts.layers[layer] else None
        return replace(self, num_layers=1, windows=self.windows[one], ropes=self.ropes[one], experts=experts)

    def experts_of(self, layer: int) -> Experts | None:
        """The experts of a layer; None if its MLP is dense."""
        return self.experts if self.experts is not None and self.experts.layers[layer] else None

    @property
    def num_parameters(self) -> int:
        """Number of weights; a tied embedding table counts once."""
        tables = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2) + self.labels * self.hidden_size
        layers = sum(self._mlp_parameters(layer) for layer in range(self.num_layers))
        rest = sum(dense.outputs * (dense.inputs + dense.bias) for dense in self.dense)
        if self.encoder is None:
            rest += self.norm_parameters
        else:
            rest += self.encoder.parameters(self.hidden_size, self.num_layers, self.labels)
        return tables + layers + self.num_layers * self._attention_parameters + rest

    @property
    def norm_parameters(self) -> int:
        """Weights of all norms."""
        heads = {None: 0, "head": 2, "all": self.num_heads + self.num_kv_heads}[self.qk_norm]
        a_layer = self.hidden_size * len(self.layer_norms) + heads * self.head_dim
        latents = 0 if self.latent is None else self.latent.norms
        return self.num_layers * (a_layer + latents) + self.hidden_size

    @property
    def _attention_parameters(self) -> int:
        embed, sinks = self.hidden_size, self.sinks * self.num_heads
        if self.latent is not None:
            return self.latent.parameters(embed, self.num_heads) + sinks
        query = self.num_heads * self.head_dim
        qkv = query + 2 * self.num_kv_heads * self.head_dim
        return embed * qkv + query * embed + self.qkv_bias * qkv + self.output_bias * embed + sinks

    def _mlp_parameters(self, layer: int) -> int:
        embed, ffn, experts = self.hidden_size, self.ffn_size, self.experts_of(layer)
        if experts is not None:
            return experts.parameters(embed, bias=self.mlp_bias)
        inner = 1 if self.encoder is not None and not self.encoder.gated else 2  # with a gate there are two
        return (inner + 1) * embed * ffn + self.mlp_bias * (inner * ffn + embed)
