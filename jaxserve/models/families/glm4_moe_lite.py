"""GLM-4.7-Flash (GLM Team 2026): DeepSeek-V3's layers in other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families import deepseek, deepseek_v3
from jaxserve.models.fields import HfFields

ARCHITECTURE = "Glm4MoeLiteForCausalLM"
MODEL_TYPE = "glm4_moe_lite"

_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "q_lora_rank": 768,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "n_routed_experts": 64,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 1.8,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    }
)


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a config.json describes: `mlp_layer_types`, or `first_k_dense_replace`, says where experts begin.

    Raises UnsupportedModelError, CheckpointError: as `common_config`.
    """
    hf = deepseek.dense_first({**_DEFAULTS, **hf})
    return deepseek.deepseek_config(
        hf, model_type=MODEL_TYPE, routing=deepseek_v3.routing_of(HfFields(hf)), defaults=_DEFAULTS, fixed=deepseek_v3.FIXED
    )


weight_rules = deepseek.weight_rules
