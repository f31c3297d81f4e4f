"""Qwen3.5 to 3.8 (Qwen Team 2026), dense: the layers of Qwen3-Next with a gated MLP. Checkpoints are of models that see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.delta_net_rules import separate_rules
from jaxserve.models.families.qwen3_next import hybrid_config
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Qwen3_5ForCausalLM"
MODEL_TYPE = "qwen3_5_text"

_OF_IMAGES = ("mrope_section", "mrope_interleaved")  # how positions in images rotate: a text's are those of a line


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Qwen3.5 config.json describes. Raises UnsupportedModelError, CheckpointError: as `hybrid_config`."""
    return hybrid_config({"num_key_value_heads": 4, **of_text(hf)}, MODEL_TYPE, None, interleaved=False)


def of_text(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Without what says how images rotate."""
    tables = {name: hf[name] for name in ("rope_parameters", "rope_scaling") if isinstance(hf.get(name), dict)}
    plain = {name: {key: value for key, value in table.items() if key not in _OF_IMAGES} for name, table in tables.items()}
    return {**hf, **plain}


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, recurrent=separate_rules)
