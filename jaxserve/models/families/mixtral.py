"""Mixtral (Jiang et al. 2024): Mistral with experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig, Experts, Routing
from jaxserve.models.expert_rules import ExpertNames
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "MixtralForCausalLM"
MODEL_TYPE = "mixtral"

_NAMES = ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2")


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    fields = HfFields(hf)
    experts = Experts(
        count=fields.integer("num_local_experts", 8),
        active=fields.integer("num_experts_per_tok", 2),
        ffn_size=fields.integer("intermediate_size"),
        layers=(True,) * fields.integer("num_hidden_layers"),
        routing=Routing(),
    )
    return common_config(
        with_defaults(hf, rms_norm_eps=1e-5, rope_theta=1e6),
        model_type=MODEL_TYPE,
        qkv_bias=False,
        output_bias=False,
        windows=uniform_windows(fields, fields.integer("sliding_window") if fields.has("sliding_window") else None),
        max_position_embeddings=4096 * 32,
        num_kv_heads=None if "num_key_value_heads" in hf else 8,
        reads=frozenset({"num_local_experts"}),
        experts=experts,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, experts=_NAMES.rules)
