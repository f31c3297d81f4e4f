"""Qwen3 (Yang et al. 2025), dense: Llama with queries and keys normalised per head, and heads of 128 by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import common_config, layered_windows
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Qwen3ForCausalLM"
MODEL_TYPE = "qwen3"


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Qwen3 config.json describes; `attention_bias` covers all four attention projections."""
    fields = HfFields(hf)
    bias = fields.flag("attention_bias", False)
    return common_config(
        hf,
        model_type=MODEL_TYPE,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="head",
        windows=layered_windows(fields),
        max_position_embeddings=32768,
        num_kv_heads=None if "num_key_value_heads" in hf else 32,
        head_dim=128,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
