"""GLM-4.5 to 4.7 (GLM Team 2025): heads rotated in part, experts chosen as in DeepSeek-V3 behind some dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.models.config import DecoderConfig, Experts
from jaxserve.models.expert_rules import ExpertNames
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.families.deepseek_v3 import routing_of
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Glm4MoeForCausalLM"
MODEL_TYPE = "glm4_moe"

_LONGEST = 131072
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "num_key_value_heads": 8,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
    }
)
_NAMES = ExpertNames()


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a GLM-4 MoE config.json describes; `num_mtp_layers` is transformers' name for `num_nextn_predict_layers`.

    The tensors of those layers are passed over: they guess, and have not been tried here.

    Raises UnsupportedModelError, CheckpointError: as `common_config`.
    """
    hf = with_defaults(hf, **_DEFAULTS)
    fields = HfFields(hf)
    layers = fields.integer("num_hidden_layers")
    width = fields.integer("head_dim", max(fields.integer("hidden_size") // fields.integer("num_attention_heads"), 1))
    rope = rope_from_hf(hf, fields.integer("max_position_embeddings", _LONGEST), partly=width)
    return common_config(
        hf,
        model_type=MODEL_TYPE,
        qkv_bias=fields.flag("attention_bias", False),
        output_bias=False,
        qk_norm="head" if fields.flag("use_qk_norm", False) else None,
        windows=uniform_windows(fields, None),
        max_position_embeddings=_LONGEST,
        reads=frozenset({"n_routed_experts", "num_local_experts", "use_qk_norm", "partial_rotary_factor"}),
        ropes=(rope,) * layers,
        draft_layers=fields.count("num_nextn_predict_layers", fields.count("num_mtp_layers", 0)),
        experts=_experts(fields, layers),
    )


def _experts(fields: HfFields, layers: int) -> Experts | None:
    dense = fields.count("first_k_dense_replace", 1)
    if dense >= layers:
        return None
    size = fields.integer("moe_intermediate_size", 1408)
    return Experts(
        count=fields.integer("n_routed_experts", fields.integer("num_local_experts", 128)),
        active=fields.integer("num_experts_per_tok", 8),
        ffn_size=size,
        layers=tuple(layer >= dense for layer in range(layers)),
        routing=routing_of(fields),
        shared_ffn_size=size * fields.count("n_shared_experts", 1),
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, experts=_NAMES.rules)
