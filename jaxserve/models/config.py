"""What a decoder is: every number and choice that its forward pass and its weights depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
        activation: of the MLP's gate.
        scales: constant factors and soft caps.
        windows: one entry a layer: how many of the latest positions a token sees, itself included; None for all.
        max_position_embeddings: longest sequence the model is defined for.
        dtype: name of the checkpoint's dtype.
        eos_token_ids: tokens that end a sequence.
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
    activation: Literal["silu", "gelu_tanh"]
    scales: Scales = UNSCALED
    windows: tuple[int | None, ...]
    max_position_embeddings: int
    dtype: str
    eos_token_ids: tuple[int, ...]

    def serving(self, length: int) -> DecoderConfig:
        """The same for an engine whose sequences are no longer than `length`."""
        return replace(self, ropes=tuple(rope and rope.serving(length) for rope in self.ropes))

    def first(self, layers: int) -> DecoderConfig:
        """The same with only its first layers."""
        return replace(self, num_layers=layers, windows=self.windows[:layers], ropes=self.ropes[:layers])

    @property
    def num_parameters(self) -> int:
        """Number of weights; a tied embedding table counts once."""
        tables = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return tables + self.num_layers * self._layer_parameters + self.norm_parameters

    @property
    def norm_parameters(self) -> int:
        """Weights of all norms."""
        heads = {None: 0, "head": 2, "all": self.num_heads + self.num_kv_heads}[self.qk_norm]
        a_layer = self.hidden_size * (4 if self.norms == "around" else 2) + heads * self.head_dim
        return self.num_layers * a_layer + self.hidden_size

    @property
    def _layer_parameters(self) -> int:
        embed, ffn, query = self.hidden_size, self.ffn_size, self.num_heads * self.head_dim
        qkv = query + 2 * self.num_kv_heads * self.head_dim
        matrices = embed * qkv + query * embed + 3 * embed * ffn
        biases = self.qkv_bias * qkv + self.output_bias * embed + self.mlp_bias * (2 * ffn + embed)
        return matrices + biases
