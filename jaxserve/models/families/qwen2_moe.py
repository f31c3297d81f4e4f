"""Qwen1.5-MoE and Qwen2-MoE (Qwen Team 2024): Qwen2 with experts in some layers, one of them shared behind a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig, Experts, Routing
from jaxserve.models.expert_rules import ExpertNames
from jaxserve.models.families.common import common_config, sliding_layers, uses_window, windows_of
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Qwen2MoeForCausalLM"
MODEL_TYPE = "qwen2_moe"

_NAMES = ExpertNames(shared="shared_expert")


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    fields = HfFields(hf)
    shared = fields.integer("shared_expert_intermediate_size", 5632)
    return common_config(
        hf,
        model_type=MODEL_TYPE,
        qkv_bias=fields.flag("qkv_bias", True),
        output_bias=False,
        windows=_windows(fields),
        max_position_embeddings=32768,
        num_kv_heads=None if "num_key_value_heads" in hf else 16,
        reads=frozenset({"num_experts"}),
        experts=sparse_experts(
            fields, count=fields.count("num_experts", 60), active=4, ffn_size=1408, shared_ffn_size=shared, shared_gate=True
        ),
    )


def sparse_experts(fields: HfFields, *, count: int, active: int, ffn_size: int, **shared: Any) -> Experts | None:
    """The experts of the Qwen families: in every `decoder_sparse_step`th layer but those of `mlp_only_layers`.

    Args:
        fields: of config.json.
        count: how many there are; 0 for a dense model.
        active: the family's default for how many of them a token visits.
        ffn_size: the family's default for the size of one.
        shared: what Experts says of a shared expert.
    """
    step, dense = fields.integer("decoder_sparse_step", 1), fields.counts("mlp_only_layers")
    layers = tuple((i + 1) % step == 0 and i not in dense for i in range(fields.integer("num_hidden_layers")))
    if count == 0 or not any(layers):
        return None
    return Experts(
        count=count,
        active=fields.integer("num_experts_per_tok", active),
        ffn_size=fields.integer("moe_intermediate_size", ffn_size),
        layers=layers,
        routing=Routing(normalize=fields.flag("norm_topk_prob", False)),
        **shared,
    )


def _windows(fields: HfFields) -> tuple[int | None, ...]:
    """With `use_sliding_window`, of the layers that `layer_types` names; if none, every second one before `max_window_layers`."""
    slides, first = uses_window(fields), fields.count("max_window_layers", 28)
    sliding = sliding_layers(fields, lambda layer: slides and layer % 2 == 0 and layer < first)
    return windows_of(sliding, fields.integer("sliding_window", 4096)) if any(sliding) else (None,) * len(sliding)


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, experts=_NAMES.rules)
