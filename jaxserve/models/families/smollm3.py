"""SmolLM3 (Hugging Face 2025): Llama in which every fourth layer knows no positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import common_config, layer_ropes, sliding_layers, windows_of
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "SmolLM3ForCausalLM"
MODEL_TYPE = "smollm3"

_LONGEST = 32768
_THETA = 2e6


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    fields = HfFields(hf)
    bias = fields.flag("attention_bias", False)
    rope = rope_from_hf(with_defaults(hf, rope_theta=_THETA), fields.integer("max_position_embeddings", _LONGEST))
    ropes = layer_ropes(fields, rope)
    slides = fields.flag("use_sliding_window", False) and fields.has("sliding_window")
    sliding = sliding_layers(fields, lambda layer: slides and ropes[layer] is None)
    return common_config(
        hf,
        model_type=MODEL_TYPE,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        windows=windows_of(sliding, fields.integer("sliding_window")) if slides else (None,) * len(ropes),
        max_position_embeddings=_LONGEST,
        num_kv_heads=None if "num_key_value_heads" in hf else 4,
        tie_embeddings=True,
        reads=frozenset({"no_rope_layers"}),
        ropes=ropes,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
