"""Qwen3-MoE (Yang et al. 2025): Qwen3 with experts in some layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.expert_rules import ExpertNames
from jaxserve.models.families.common import common_config, uses_window
from jaxserve.models.families.qwen2_moe import sparse_experts
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Qwen3MoeForCausalLM"
MODEL_TYPE = "qwen3_moe"

_NAMES = ExpertNames()


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Qwen3-MoE config.json describes; with `use_sliding_window` every layer has the window.

    What Qwen calls `num_experts`, transformers 5 writes as `num_local_experts`.

    Raises UnsupportedModelError, CheckpointError: as `common_config`.
    """
    fields = HfFields(hf)
    bias = fields.flag("attention_bias", False)
    slides = uses_window(fields)
    windows = (fields.integer("sliding_window", 4096) if slides else None,) * fields.integer("num_hidden_layers")
    count = fields.count("num_local_experts", fields.count("num_experts", 128))
    return common_config(
        hf,
        model_type=MODEL_TYPE,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="head",
        windows=windows,
        max_position_embeddings=32768,
        num_kv_heads=None if "num_key_value_heads" in hf else 4,
        reads=frozenset({"num_experts", "num_local_experts"}),
        experts=sparse_experts(fields, count=count, active=8, ffn_size=768),
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, experts=_NAMES.rules)
