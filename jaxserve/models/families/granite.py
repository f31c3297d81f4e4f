"""Granite 3 (IBM 2024): Llama with constant factors on embeddings, scores, residual stream and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig, Scales
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "GraniteForCausalLM"
MODEL_TYPE = "granite"

FACTORS = frozenset({"embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"})


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Granite config.json describes; logits are divided by `logits_scaling`."""
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
        reads=FACTORS,
        scales=granite_scales(fields),
    )


def granite_scales(fields: HfFields) -> Scales:
    return Scales(
        embedding=fields.number("embedding_multiplier", 1.0),
        attention=fields.number("attention_multiplier", 1.0),
        residual=fields.number("residual_multiplier", 1.0),
        logits=1 / fields.number("logits_scaling", 1.0),
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
