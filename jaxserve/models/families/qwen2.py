"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on queries, keys and values, and windows in upper layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import common_config, layered_windows
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Qwen2ForCausalLM"
MODEL_TYPE = "qwen2"


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    return common_config(
        hf,
        model_type=MODEL_TYPE,
        qkv_bias=True,
        output_bias=False,
        windows=layered_windows(HfFields(hf)),
        max_position_embeddings=32768,
        num_kv_heads=None if "num_key_value_heads" in hf else 32,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
