"""Command A and Command R7B (Cohere 2025): attention beside the MLP, behind one LayerNorm; layers with a window rotate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from jaxserve.models.config import DecoderConfig, Scales
from jaxserve.models.families.common import common_config, sliding_layers, windows_of
from jaxserve.models.fields import HfFields
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Cohere2ForCausalLM"
MODEL_TYPE = "cohere2"

_LONGEST = 8192
_DEFAULTS: Mapping[str, Any] = MappingProxyType({"layer_norm_eps": 1e-5, "logit_scale": 0.0625})


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Cohere 2 config.json describes: by default every fourth layer sees all, and knows no positions.

    Raises UnsupportedModelError, CheckpointError: as `common_config`.
    """
    hf = {**_DEFAULTS, **hf}
    fields = HfFields(hf)
    every = fields.integer("sliding_window_pattern", 4)
    sliding = sliding_layers(fields, lambda layer: (layer + 1) % every != 0)
    rope = replace(rope_from_hf(hf, fields.integer("max_position_embeddings", _LONGEST)), interleaved=True)
    bias = fields.flag("attention_bias", False)
    return common_config(
        {**hf, "rms_norm_eps": fields.number("layer_norm_eps")},
        model_type=MODEL_TYPE,
        qkv_bias=bias,
        output_bias=bias,
        tie_embeddings=True,
        windows=windows_of(sliding, fields.integer("sliding_window", 4096)),
        max_position_embeddings=_LONGEST,
        reads=frozenset({"logit_scale"}),
        ropes=tuple(rope if slides else None for slides in sliding),
        norms="parallel",
        layer_norm=True,
        scales=Scales(logits=fields.number("logit_scale")),
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
