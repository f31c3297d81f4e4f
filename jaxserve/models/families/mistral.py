"""Mistral (Jiang et al. 2023): Llama without biases, with the same sliding window in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "MistralForCausalLM"
MODEL_TYPE = "mistral"


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Mistral config.json describes. `sliding_window` is 4096 if absent and none if null."""
    fields = HfFields(hf)
    unlimited = "sliding_window" in hf and hf["sliding_window"] is None
    window = None if unlimited else fields.integer("sliding_window", 4096)
    return common_config(
        hf,
        model_type=MODEL_TYPE,
        qkv_bias=False,
        output_bias=False,
        windows=uniform_windows(fields, window),
        max_position_embeddings=131072,
        num_kv_heads=None if "num_key_value_heads" in hf else 8,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
