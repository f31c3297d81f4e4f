"""Llama 1 to 3.x (Touvron et al. 2023; Dubey et al. 2024) and the many models published in its format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "LlamaForCausalLM"
MODEL_TYPE = "llama"


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Llama config.json describes; `attention_bias` covers all four attention projections."""
    fields = HfFields(hf)
    bias = fields.flag("attention_bias", False)
    return common_config(
        hf,
        model_type=MODEL_TYPE,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        windows=uniform_windows(fields, None),
        max_position_embeddings=2048,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
