"""MiniMax-M2 (MiniMax 2025): QK-norm over all heads, heads rotated in part, experts chosen as in DeepSeek-V3, without groups."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.models.config import DecoderConfig, Experts, Routing
from jaxserve.models.expert_rules import ExpertNames
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "MiniMaxM2ForCausalLM"
MODEL_TYPE = "minimax_m2"

_LONGEST, _HEAD_DIM = 196608, 128
# Fields of the published files, beside what is computed with.
_FIXED: Mapping[str, Any] = MappingProxyType(
    {
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "shared_intermediate_size": 0,
    }
)
_NAMES = ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2", correction="e_score_correction_bias")


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a MiniMax-M2 config.json describes, whose `rotary_dim` transformers 5 writes as a share of a head.

    Raises UnsupportedModelError, CheckpointError: as `common_config`.
    """
    hf = with_defaults(hf, rope_theta=5e6, num_key_value_heads=8)
    fields = HfFields(hf)
    for name, value in _FIXED.items():
        if fields.has(name) and hf[name] != value:
            raise fields.unsupported(name, f"this architecture has {value!r}")
    if any(kind != 1 for kind in fields.counts("attn_type_list")):
        raise fields.unsupported("attn_type_list", "every layer of this architecture sees all positions: 1")
    layers, width = fields.integer("num_hidden_layers"), fields.integer("head_dim", _HEAD_DIM)
    if fields.has("rotary_dim"):
        hf = {"partial_rotary_factor": fields.integer("rotary_dim") / width, **hf}
    rope = rope_from_hf(hf, fields.integer("max_position_embeddings", _LONGEST), partly=width)
    return common_config(
        hf,
        model_type=MODEL_TYPE,
        qkv_bias=False,
        output_bias=False,
        qk_norm="all",
        windows=uniform_windows(fields, None),
        max_position_embeddings=_LONGEST,
        head_dim=_HEAD_DIM,
        reads=frozenset({"num_local_experts", "num_experts", "use_qk_norm", "partial_rotary_factor"}),
        ropes=(rope,) * layers,
        experts=Experts(
            count=fields.integer("num_local_experts", fields.integer("num_experts", 256)),
            active=fields.integer("num_experts_per_tok", 8),
            ffn_size=fields.integer("intermediate_size"),
            layers=(True,) * layers,
            routing=Routing(score="sigmoid", correction=True),
        ),
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, experts=_NAMES.rules)
