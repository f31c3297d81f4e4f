"""Qwen3.5 to 3.8 (Qwen Team 2026) with experts: the layers of Qwen3-Next. Published checkpoints stack all experts of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig, Experts, Routing
from jaxserve.models.delta_net_rules import separate_rules
from jaxserve.models.expert_rules import ExpertNames
from jaxserve.models.families.qwen3_5 import of_text
from jaxserve.models.families.qwen3_next import hybrid_config
from jaxserve.models.fields import HfFields
from jaxserve.models.mtp import module_rules as rules_of_module
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Qwen3_5MoeForCausalLM"
MODEL_TYPE = "qwen3_5_moe_text"

_NAMES = ExpertNames(shared="shared_expert")


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Qwen3.5-MoE config.json describes. Raises UnsupportedModelError, CheckpointError: as `hybrid_config`."""
    fields = HfFields(hf)
    ffn = fields.integer("moe_intermediate_size", 512)
    experts = Experts(
        count=fields.integer("num_local_experts", fields.integer("num_experts", 256)),
        active=fields.integer("num_experts_per_tok", 8),
        ffn_size=ffn,
        layers=(True,) * fields.integer("num_hidden_layers"),
        routing=Routing(normalize=True),
        shared_ffn_size=fields.integer("shared_expert_intermediate_size", 512),
        shared_gate=True,
    )
    hf = {"num_key_value_heads": 2, "intermediate_size": ffn, **of_text(hf)}  # every layer has experts
    return hybrid_config(hf, MODEL_TYPE, experts, interleaved=False)


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, experts=_NAMES.rules, recurrent=separate_rules)


def module_rules(config: DecoderConfig) -> list[WeightRule]:
    """Of a module for multi-token prediction."""
    return rules_of_module(config, experts=_NAMES.rules)
