"""OLMo 3 (Team OLMo 2025): OLMo 2 with a window in three of four layers, whose rotary embedding is never scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import common_config, sliding_layers, windows_of
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.positions import RopeConfig
from jaxserve.models.rope_config import rope_from_hf, ropes_by_kind
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Olmo3ForCausalLM"
MODEL_TYPE = "olmo3"

_LONGEST = 2048
_THETA = 5e5


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that an OLMo 3 config.json describes; `attention_bias` covers all four attention projections."""
    fields = HfFields(hf)
    bias = fields.flag("attention_bias", False)
    sliding = sliding_layers(fields, lambda layer: (layer + 1) % 4 != 0)
    local, whole = _ropes(fields)
    return common_config(
        with_defaults(hf, rms_norm_eps=1e-5),
        model_type=MODEL_TYPE,
        qkv_bias=bias,
        output_bias=bias,
        windows=windows_of(sliding, fields.integer("sliding_window", 4096)),
        max_position_embeddings=_LONGEST,
        norms="after",
        qk_norm="all",
        ropes=tuple(local if each else whole for each in sliding),
    )


def _ropes(fields: HfFields) -> tuple[RopeConfig, RopeConfig]:
    limit = fields.integer("max_position_embeddings", _LONGEST)
    tables = HfFields(fields.table("rope_parameters"), "config.json, rope_parameters")
    theta = tables.number("rope_theta", fields.number("rope_theta", _THETA))  # early files of transformers 5 have one for both
    ropes = ropes_by_kind(fields, limit, (theta, theta))
    if ropes is not None:
        return ropes
    return rope_from_hf({"rope_theta": theta}, limit), rope_from_hf(with_defaults(fields.hf, rope_theta=theta), limit)


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
