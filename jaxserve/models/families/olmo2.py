"""OLMo 2 (Team OLMo 2025): blocks are normalised after instead of before, queries and keys over all heads together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Olmo2ForCausalLM"
MODEL_TYPE = "olmo2"


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that an OLMo 2 config.json describes; `attention_bias` covers all four attention projections."""
    fields = HfFields(hf)
    bias = fields.flag("attention_bias", False)
    return common_config(
        with_defaults(hf, rms_norm_eps=1e-5),
        model_type=MODEL_TYPE,
        qkv_bias=bias,
        output_bias=bias,
        windows=uniform_windows(fields, None),
        max_position_embeddings=2048,
        norms="after",
        qk_norm="all",
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
