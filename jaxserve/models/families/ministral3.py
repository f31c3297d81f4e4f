"""Ministral 3 (Mistral AI 2025): Mistral whose queries are scaled with their positions beyond the context of pretraining."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.positions import QueryScale
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Ministral3ForCausalLM"
MODEL_TYPE = "ministral3"

_LONGEST = 262144
_BETA = "llama_4_scaling_beta"
# The rope parameters of a config.json that has none.
_ROPE: Mapping[str, Any] = MappingProxyType(
    {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        _BETA: 0.1,
    }
)
_NOT_ROTARY = frozenset({_BETA, "max_position_embeddings"})


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Ministral 3 config.json describes: its rope parameters say how queries are scaled.

    Raises UnsupportedModelError, CheckpointError: as `common_config`.
    """
    fields = HfFields(hf)
    table: Mapping[str, Any] = fields.table("rope_scaling") or fields.table("rope_parameters")
    if not table and not fields.has("rope_parameters"):
        table = _ROPE
    rotary = {**hf, "rope_scaling": None, "rope_parameters": {key: table[key] for key in table if key not in _NOT_ROTARY}}
    layers = fields.integer("num_hidden_layers")
    window = fields.integer("sliding_window") if fields.has("sliding_window") else None
    return common_config(
        with_defaults(hf, rms_norm_eps=1e-5),
        model_type=MODEL_TYPE,
        qkv_bias=False,
        output_bias=False,
        windows=uniform_windows(fields, window),
        max_position_embeddings=_LONGEST,
        num_kv_heads=None if "num_key_value_heads" in hf else 8,
        head_dim=128,
        ropes=(rope_from_hf(rotary, fields.integer("max_position_embeddings", _LONGEST)),) * layers,
        query_scale=_query_scale(HfFields(table, "config.json, rope parameters")),
    )


def _query_scale(fields: HfFields) -> QueryScale | None:
    if not fields.has(_BETA):
        return None
    return QueryScale(beta=fields.number(_BETA), period=fields.integer("original_max_position_embeddings"))


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
