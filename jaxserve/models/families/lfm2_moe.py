"""LFM2 with experts behind some dense layers (Liquid AI 2025), chosen as in DeepSeek-V3, without groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig, Experts, Routing
from jaxserve.models.expert_rules import ExpertNames
from jaxserve.models.families import lfm2
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule, decoder_rules, renamed
from jaxserve.models.short_conv_rules import short_conv_rules

ARCHITECTURE = "Lfm2MoeForCausalLM"
MODEL_TYPE = "lfm2_moe"

_NAMES = ExpertNames(block="feed_forward", gate="w1", up="w3", down="w2", correction="expert_bias")


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that an LFM2-MoE config.json describes: experts begin at layer `num_dense_layers`.

    Raises UnsupportedModelError, CheckpointError: as `lfm2_config`.
    """
    fields = HfFields(hf)
    layers, dense = fields.integer("num_hidden_layers"), fields.count("num_dense_layers", 2)
    experts = Experts(
        count=fields.integer("num_experts", 32),
        active=fields.integer("num_experts_per_tok", 4),
        ffn_size=fields.integer("moe_intermediate_size", 1792),
        layers=tuple(layer >= dense for layer in range(layers)),
        routing=Routing(
            score="sigmoid",
            normalize=fields.flag("norm_topk_prob", True),
            scale=fields.number("routed_scaling_factor", 1.0),
            correction=fields.flag("use_expert_bias", True),
        ),
    )
    return lfm2.lfm2_config(
        hf, model_type=MODEL_TYPE, reads=frozenset({"num_experts"}), experts=experts if dense < layers else None
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return renamed(decoder_rules(config, recurrent=short_conv_rules, experts=_NAMES.rules), lfm2.NAMES)
