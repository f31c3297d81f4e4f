"""Seed-OSS (ByteDance 2025): Llama with heads of 128 and biases on queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "SeedOssForCausalLM"
MODEL_TYPE = "seed_oss"


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Seed-OSS config.json describes; the output projection's bias is `attention_out_bias`."""
    fields = HfFields(hf)
    return common_config(
        hf,
        model_type=MODEL_TYPE,
        qkv_bias=fields.flag("attention_bias", True),
        output_bias=fields.flag("attention_out_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        windows=uniform_windows(fields, None),
        max_position_embeddings=524288,
        num_kv_heads=None if "num_key_value_heads" in hf else 8,
        head_dim=None if "head_dim" in hf else 128,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
