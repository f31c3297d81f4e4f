"""DeepSeek-V3 and R1 (2024): latent attention; experts chosen by sigmoid with a stored correction, of the best groups only.

Kimi K2 (Moonshot AI 2025) is of this architecture, under a `model_type` of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.models.config import DecoderConfig, Routing
from jaxserve.models.families import deepseek
from jaxserve.models.fields import HfFields

ARCHITECTURE = "DeepseekV3ForCausalLM"
MODEL_TYPE = "deepseek_v3"
KIMI_K2 = "kimi_k2"

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 4096,
    }
)
FIXED: Mapping[str, Any] = MappingProxyType({"scoring_func": "sigmoid", "topk_method": "noaux_tc", "rope_interleave": True})


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    if hf.get("model_type") == KIMI_K2:
        hf = {**hf, "model_type": MODEL_TYPE}
    routing = routing_of(HfFields(hf))
    return deepseek.deepseek_config(hf, model_type=MODEL_TYPE, routing=routing, defaults=DEFAULTS, fixed=FIXED)


def routing_of(fields: HfFields) -> Routing:
    """How tokens choose experts, by DeepSeek-V3's defaults."""
    return Routing(
        score="sigmoid",
        normalize=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 2.5),
        correction=True,
        groups=fields.integer("n_group", 8),
        active_groups=fields.integer("topk_group", 4),
        group_score="top2",
    )


weight_rules = deepseek.weight_rules
module_rules = deepseek.module_rules
