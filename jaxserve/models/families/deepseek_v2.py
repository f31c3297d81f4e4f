"""DeepSeek-V2 and V2-Lite (2024): latent attention; experts chosen by softmax, in V2 of the best groups only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.models.config import DecoderConfig, Routing
from jaxserve.models.families import deepseek
from jaxserve.models.fields import HfFields

ARCHITECTURE = "DeepseekV2ForCausalLM"
MODEL_TYPE = "deepseek_v2"

_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "max_position_embeddings": 2048,
    }
)
# transformers ignores norm_topk_prob, and DeepSeek's own code then drops the factor: no checkpoint sets it.
_FIXED: Mapping[str, Any] = MappingProxyType({"norm_topk_prob": False, "scoring_func": "softmax"})


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    return deepseek.deepseek_config(hf, model_type=MODEL_TYPE, routing=_routing(HfFields(hf)), defaults=_DEFAULTS, fixed=_FIXED)


def _routing(fields: HfFields) -> Routing:
    scale = fields.number("routed_scaling_factor", 1.0)
    match fields.hf.get("topk_method", "greedy"):
        case "greedy":
            return Routing(normalize=False, scale=scale)
        case "group_limited_greedy":
            groups, active = fields.integer("n_group"), fields.integer("topk_group")
            return Routing(normalize=False, scale=scale, groups=groups, active_groups=active, group_score="max")
    raise fields.unsupported("topk_method", "supported are 'greedy' and 'group_limited_greedy'")


weight_rules = deepseek.weight_rules
