"""GLM-4-0414 and GLM-Z1 (GLM Team 2025): GLM-4 with norms around every block, under names of its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families import glm
from jaxserve.models.rules import WeightRule, renamed

ARCHITECTURE = "Glm4ForCausalLM"
MODEL_TYPE = "glm4"

_NORMS: Mapping[str, str] = MappingProxyType(
    {
        "post_attention_layernorm": "post_self_attn_layernorm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "post_mlp_layernorm",
    }
)


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a GLM-4-0414 config.json describes."""
    return glm.glm_config(hf, model_type=MODEL_TYPE, norms="around")


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return renamed(glm.weight_rules(config), _NORMS)
