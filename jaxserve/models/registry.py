"""The architectures that jaxserve serves, by the name that config.json gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jaxserve.errors import UnsupportedModelError
from jaxserve.models.config import DecoderConfig
from jaxserve.models.draft_heads import head_rules
from jaxserve.models.families import (
    deepseek_v2,
    deepseek_v3,
    gemma2,
    gemma3,
    gpt_oss,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    seed_oss,
    smollm3,
)
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule


@dataclass(frozen=True, slots=True)
class Family:
    """How the checkpoints of one architecture are read.

    Attributes:
        config_from_hf: parsed config.json to DecoderConfig; raises as `decoder_config`.
        weight_rules: DecoderConfig to the place of every tensor.
    """

    architecture: str
    model_type: str
    config_from_hf: Callable[[Mapping[str, Any]], DecoderConfig]
    weight_rules: Callable[[DecoderConfig], list[WeightRule]]


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        module.ARCHITECTURE: Family(module.ARCHITECTURE, module.MODEL_TYPE, module.config_from_hf, module.weight_rules)
        for module in (
            llama,
            mistral,
            qwen2,
            qwen3,
            gemma2,
            gemma3,
            phi3,
            olmo2,
            olmo3,
            smollm3,
            granite,
            seed_oss,
            mixtral,
            qwen2_moe,
            qwen3_moe,
            gpt_oss,
            deepseek_v2,
            deepseek_v3,
        )
    }
)


MODULE_RULES: Mapping[str, Callable[[DecoderConfig], list[WeightRule]]] = MappingProxyType(
    {deepseek_v3.ARCHITECTURE: deepseek_v3.module_rules}
)
"""Of modules for multi-token prediction, by the architectures whose checkpoints may have one."""

MODEL_TYPES: Mapping[str, str] = MappingProxyType({family.model_type: name for name, family in FAMILIES.items()})
"""The architecture that goes with each `model_type`."""


def family(hf: Mapping[str, Any]) -> Family:
    """The family of a parsed config.json.

    Raises UnsupportedModelError: config.json names no architecture, several, or one that jaxserve does not have.
    """
    names = HfFields(hf).strings("architectures") or ()
    if len(names) != 1 or names[0] not in FAMILIES:
        named = ", ".join(names) if names else "none"
        raise UnsupportedModelError(
            f"architecture {named} in config.json is not supported; supported are {', '.join(FAMILIES)}", param="model"
        )
    return FAMILIES[names[0]]


def decoder_config(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a parsed config.json describes.

    Raises:
        UnsupportedModelError: an architecture or a value that jaxserve does not implement, named.
        CheckpointError: a field that is missing or impossible, named.
    """
    return family(hf).config_from_hf(hf)


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    """Where each tensor of a checkpoint of this decoder goes."""
    if config.fed is None:
        return FAMILIES[config.architecture].weight_rules(config)
    return head_rules(config) if config.fed.layer is None else MODULE_RULES[config.architecture](config)
