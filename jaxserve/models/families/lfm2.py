"""LFM2 (Liquid AI 2025): short convolutions between two gates in the place of attention, in most layers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import common_config, recurrent_layers
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.recurrent import ShortConv
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import WeightRule, decoder_rules, renamed
from jaxserve.models.short_conv_rules import short_conv_rules

ARCHITECTURE = "Lfm2ForCausalLM"
MODEL_TYPE = "lfm2"

_LONGEST = 128000
_RECURRENT, _ATTENDING = "conv", "full_attention"
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "model.norm.": "model.embedding_norm.",
        "input_layernorm": "operator_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_norm": "self_attn.q_layernorm",
        "self_attn.k_norm": "self_attn.k_layernorm",
        "self_attn.o_proj": "self_attn.out_proj",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    }
)
"""What most families call what LFM2 calls otherwise."""


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that an LFM2 config.json describes; F is less than `intermediate_size` where `block_auto_adjust_ff_dim` is set.

    Raises UnsupportedModelError, CheckpointError: as `lfm2_config`.
    """
    fields = HfFields(hf)
    ffn = fields.integer("block_ff_dim", fields.integer("intermediate_size", 12288))
    if fields.flag("block_auto_adjust_ff_dim", True):
        step = fields.integer("block_multiple_of", 256)
        ffn = int(fields.number("block_ffn_dim_multiplier", 1.0) * int(2 * ffn / 3))
        ffn = -(-ffn // step) * step
    return lfm2_config({**hf, "intermediate_size": ffn}, model_type=MODEL_TYPE)


def lfm2_config(hf: Mapping[str, Any], *, reads: frozenset[str] = frozenset(), **family: Any) -> DecoderConfig:
    """A DecoderConfig of an LFM2; `family` is what `common_config` is told besides.

    Raises:
        UnsupportedModelError: a layer type or biases that jaxserve does not implement.
        CheckpointError: no layer with attention, a convolution of one tap, or what `common_config` refuses.
    """
    hf = with_defaults(hf, rope_theta=1000000.0, num_key_value_heads=8)
    fields = HfFields(hf)
    if fields.flag("conv_bias", False):
        raise fields.unsupported("conv_bias", "convolutions and their projections add no bias")
    layers, width = fields.integer("num_hidden_layers"), fields.integer("conv_L_cache", 3)
    if width < 2:
        raise CheckpointError(f"config.json: conv_L_cache must be 2 or more, got {width}")
    kinds = fields.strings("layer_types")
    if kinds is None:
        attending = fields.counts("full_attn_idxs") or range(layers)
        kinds = tuple(_ATTENDING if layer in attending else _RECURRENT for layer in range(layers))
    convolving = recurrent_layers(fields, kinds, recurrent=(_RECURRENT,), attending=(_ATTENDING,))
    rope = rope_from_hf(hf, fields.integer("max_position_embeddings", _LONGEST))
    tied = hf.get("tie_word_embeddings") if hf.get("tie_embedding") is None else hf["tie_embedding"]
    return common_config(
        # The family's own name of the flag wins where a file has both, as in transformers.
        {
            **hf,
            "rms_norm_eps": fields.number("norm_eps", 1e-5),
            "tie_word_embeddings": tied,
        },
        qkv_bias=False,
        output_bias=False,
        qk_norm="head",
        tie_embeddings=True,
        windows=(None,) * layers,
        max_position_embeddings=_LONGEST,
        reads=reads,
        ropes=tuple(None if each else rope for each in convolving),
        recurrent=ShortConv(layers=convolving, width=width, channels=fields.integer("hidden_size")) if any(convolving) else None,
        **family,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return renamed(decoder_rules(config, recurrent=short_conv_rules), NAMES)
