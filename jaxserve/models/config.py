"""What a decoder is: every number and choice that its forward pass and its weights depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding, with every default already filled in.

    Attributes:
        kind: how the frequencies are scaled; "dynamic" is unscaled up to the model's `max_position_embeddings`, which
            is the longest sequence that jaxserve serves of it.
        theta: base of the frequencies.
        factor: context extension factor of "linear", "llama3" and "yarn".
        original_max_position_embeddings: context length of pretraining ("llama3", "yarn").
        low_freq_factor, high_freq_factor: bounds of the smoothed band ("llama3").
        beta_fast, beta_slow: rotations that bound the interpolated band ("yarn").
        truncate: whether the band's bounds are rounded outwards to whole dimensions ("yarn").
        attention_factor: multiplies cosine and sine ("yarn").
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder-only transformer with pre-normalisation, rotary positions, grouped-query attention and a gated MLP.

    Attributes:
        architecture: the name in `architectures` of config.json.
        vocab_size: V, columns of the logits.
        hidden_size: E.
        num_layers: L.
        num_heads, num_kv_heads, head_dim: H, K, D; H is a multiple of K, and H*D need not equal E.
        ffn_size: F.
        norm_eps: added to the mean square in RMSNorm.
        rope: rotary embedding.
        tie_embeddings: the logits use the embedding table instead of a matrix of their own.
        qkv_bias, output_bias, mlp_bias: which projections add a bias.
        qk_norm: queries and keys are normalised per head before rotation.
        activation: of the MLP's gate.
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
    rope: RopeConfig
    tie_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    activation: Literal["silu"]
    windows: tuple[int | None, ...]
    max_position_embeddings: int
    dtype: str
    eos_token_ids: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """Number of weights; a tied embedding table counts once."""
        tables = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return tables + self.num_layers * self._layer_parameters + self.hidden_size

    @property
    def _layer_parameters(self) -> int:
        embed, ffn, query = self.hidden_size, self.ffn_size, self.num_heads * self.head_dim
        qkv = query + 2 * self.num_kv_heads * self.head_dim
        matrices = embed * qkv + query * embed + 3 * embed * ffn
        biases = self.qkv_bias * qkv + self.output_bias * embed + self.mlp_bias * (2 * ffn + embed)
        norms = 2 * embed + self.qk_norm * 2 * self.head_dim
        return matrices + biases + norms
