"""Phi-3 (Abdin et al. 2024) and Phi-4: Llama with fused projections, LongRoPE, and heads that are rotated in part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.positions import RopeConfig
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Phi3ForCausalLM"
MODEL_TYPE = "phi3"

_LONGEST = 4096
_OLD_NAMES = ("su", "yarn")  # of LongRoPE, in files of its first year


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    fields = HfFields(hf)
    window = fields.integer("sliding_window") if fields.has("sliding_window") else None
    return common_config(
        with_defaults(hf, rms_norm_eps=1e-5),
        model_type=MODEL_TYPE,
        qkv_bias=False,
        output_bias=False,
        windows=uniform_windows(fields, window),
        max_position_embeddings=_LONGEST,
        reads=frozenset({"partial_rotary_factor"}),
        ropes=(_rope(fields),) * fields.integer("num_hidden_layers"),
    )


def _rope(fields: HfFields) -> RopeConfig:
    hf = {"original_max_position_embeddings": _LONGEST, **fields.hf}
    for place in ("rope_scaling", "rope_parameters"):
        table = fields.table(place)
        kind = "rope_type" if "rope_type" in table else "type"
        if table.get(kind) in _OLD_NAMES:
            hf[place] = {**table, kind: "longrope"}
    head_dim = fields.integer("hidden_size") // fields.integer("num_attention_heads")
    return rope_from_hf(hf, fields.integer("max_position_embeddings", _LONGEST), partly=head_dim)


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, fused=True)
