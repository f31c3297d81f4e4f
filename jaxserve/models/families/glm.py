"""GLM-4 as first published (GLM Team 2024): half of each head rotated, neighbours as pairs; gate and up in one matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import Path, WeightRule, decoder_rules, mlp_rules

ARCHITECTURE = "GlmForCausalLM"
MODEL_TYPE = "glm"

_LONGEST = 131072
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-07, "attention_bias": True}
)


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a GLM-4 config.json describes; `attention_bias` covers queries, keys and values."""
    return glm_config(hf, model_type=MODEL_TYPE)


def glm_config(hf: Mapping[str, Any], **family: Any) -> DecoderConfig:
    """A DecoderConfig of a dense GLM; `family` is what `common_config` is told besides. Raises as that does."""
    hf = with_defaults(hf, **_DEFAULTS)
    fields = HfFields(hf)
    head_dim = fields.integer("head_dim", 128)
    rope = rope_from_hf(hf, fields.integer("max_position_embeddings", _LONGEST), partly=head_dim)
    return common_config(
        hf,
        qkv_bias=fields.flag("attention_bias", True),
        output_bias=False,
        windows=uniform_windows(fields, None),
        max_position_embeddings=_LONGEST,
        head_dim=head_dim,
        reads=frozenset({"partial_rotary_factor"}),
        ropes=(replace(rope, interleaved=True),) * fields.integer("num_hidden_layers"),
        **family,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, mlp=_mlp_rules)


def _mlp_rules(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    return mlp_rules(config, (*path, "mlp"), f"{prefix}.mlp", fused=True)
