"""Gemma 2 (Gemma Team 2024): norms on both sides of every block, soft caps, GeGLU, and a window in every other layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import sliding_layers, windows_of
from jaxserve.models.families.gemma import gemma_config
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Gemma2ForCausalLM"
MODEL_TYPE = "gemma2"


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Gemma 2 config.json describes; the first layer and every second one after it have the window."""
    fields = HfFields(hf)
    windows = windows_of(sliding_layers(fields, lambda layer: layer % 2 == 0), fields.integer("sliding_window", 4096))
    caps = {name: 50.0 if name.startswith("attn") else 30.0 for name in ("attn_logit_softcapping", "final_logit_softcapping")}
    return gemma_config({**caps, **hf}, model_type=MODEL_TYPE, windows=windows, max_position_embeddings=8192)


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
