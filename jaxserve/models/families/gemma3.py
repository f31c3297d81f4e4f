"""Gemma 3 (Gemma Team 2025), text: Gemma 2 without caps, with QK-norm, and a window in five of six layers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.families.common import sliding_layers, windows_of
from jaxserve.models.families.gemma import gemma_config
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.positions import RopeConfig
from jaxserve.models.rope_config import rope_from_hf, ropes_by_kind
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Gemma3ForCausalLM"
MODEL_TYPE = "gemma3_text"

_LONGEST = 131072
_DEFAULTS: Mapping[str, Any] = MappingProxyType({"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4})
_GLOBAL_THETA, _LOCAL_THETA = 1e6, 1e4


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Gemma 3 text config.json describes; layers with a window have a rotary embedding of their own.

    Within the config.json of a model that sees, fields that have the family's defaults are missing.
    """
    hf = {**_DEFAULTS, **hf}
    fields = HfFields(hf)
    every = fields.integer("sliding_window_pattern", 6)
    sliding = sliding_layers(fields, lambda layer: (layer + 1) % every != 0)
    window, both = fields.integer("sliding_window", 4096), fields.flag("use_bidirectional_attention", False)
    local, whole = _ropes(hf, fields.integer("max_position_embeddings", _LONGEST))
    return gemma_config(
        hf,
        model_type=MODEL_TYPE,
        windows=windows_of(sliding, window // 2 + 1 if both else window),  # to either side
        max_position_embeddings=_LONGEST,
        qk_norm="head",
        ropes=tuple(local if each else whole for each in sliding),
        bidirectional=both,
        reads=frozenset({"use_bidirectional_attention"}),
    )


def _ropes(hf: Mapping[str, Any], limit: int) -> tuple[RopeConfig, RopeConfig]:
    """The rotary embeddings of layers with and without a window, in the layouts of transformers 5 and 4."""
    fields = HfFields(hf)
    thetas = fields.number("rope_local_base_freq", _LOCAL_THETA), fields.number("rope_theta", _GLOBAL_THETA)
    ropes = ropes_by_kind(fields, limit, thetas)
    if ropes is not None:
        return ropes
    return rope_from_hf({"rope_theta": thetas[0]}, limit), rope_from_hf(with_defaults(hf, rope_theta=_GLOBAL_THETA), limit)


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config)
