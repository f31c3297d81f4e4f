"""Gemma 4 Unified (Gemma Team 2026; 12B), text: Gemma 4 without experts, and without what layers are given besides."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families import gemma4
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule

ARCHITECTURE = "Gemma4UnifiedForCausalLM"
MODEL_TYPE = "gemma4_unified_text"

_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {**gemma4.DEFAULTS, "sliding_window": 1024, "max_position_embeddings": 262144, "hidden_size_per_layer_input": 0}
)


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Gemma 4 Unified text config.json describes. Fields with the family's defaults may be missing.

    Raises UnsupportedModelError, CheckpointError: as `gemma4_config`, and for what Gemma 4 alone has.
    """
    for name in ("hidden_size_per_layer_input", "enable_moe_block"):
        if hf.get(name):
            raise HfFields(hf).unsupported(name, f"{gemma4.ARCHITECTURE} alone has it")
    return gemma4.gemma4_config({**_DEFAULTS, **hf}, MODEL_TYPE)


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return gemma4.weight_rules(config)
