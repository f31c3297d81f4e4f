"""The architectures that jaxserve serves, by the name that config.json gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models import mtp
from jaxserve.models.config import DecoderConfig, ModuleNames
from jaxserve.models.draft_heads import head_rules
from jaxserve.models.encoder import bert, modernbert, xlm_roberta
from jaxserve.models.families import (
    cohere2,
    deepseek,
    deepseek_v2,
    deepseek_v3,
    deepseek_v32,
    gemma2,
    gemma3,
    gemma4,
    gemma4_unified,
    glm,
    glm4,
    glm4_moe,
    glm4_moe_lite,
    glm_moe_dsa,
    gpt_oss,
    granite,
    granite4,
    lfm2,
    lfm2_moe,
    llama,
    llama4,
    minimax_m2,
    ministral3,
    mistral,
    mixtral,
    nemotron_h,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
    seed_oss,
    smollm3,
)
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule, dense_rules, score_rules


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
            llama4,
            mistral,
            ministral3,
            cohere2,
            qwen2,
            qwen3,
            gemma2,
            gemma3,
            gemma4,
            gemma4_unified,
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
            deepseek_v32,
            glm,
            glm4,
            glm4_moe,
            glm4_moe_lite,
            glm_moe_dsa,
            minimax_m2,
            qwen3_next,
            qwen3_5,
            qwen3_5_moe,
            granite4,
            nemotron_h,
            lfm2,
            lfm2_moe,
        )
    }
)


ENCODERS: Mapping[str, Family] = MappingProxyType(
    {
        module.ARCHITECTURE: Family(module.ARCHITECTURE, module.MODEL_TYPE, module.config_from_hf, module.weight_rules)
        for module in (bert, xlm_roberta, modernbert)
    }
)


@dataclass(frozen=True, slots=True)
class ModuleFamily:
    """How the module for multi-token prediction of an architecture is read.

    Attributes:
        names: of its tensors, from the number of the target's layers.
        with_module: config.json and the target's DecoderConfig to the config.json of a model that has the module as last layer.
        rules: of its weights.
        normed_on: as in `Fed`.
    """

    names: Callable[[int], ModuleNames]
    with_module: Callable[[Mapping[str, Any], DecoderConfig], dict[str, Any]]
    rules: Callable[[DecoderConfig], list[WeightRule]]
    normed_on: bool = False


_beside = partial(ModuleFamily, mtp.names_beside, qwen3_next.with_module, normed_on=True)
MODULES: Mapping[str, ModuleFamily] = MappingProxyType(
    {
        deepseek_v3.ARCHITECTURE: ModuleFamily(mtp.names_behind, deepseek.with_module, deepseek_v3.module_rules),
        deepseek_v32.ARCHITECTURE: ModuleFamily(mtp.names_behind, deepseek.with_module, deepseek_v32.module_rules),
        glm_moe_dsa.ARCHITECTURE: ModuleFamily(mtp.names_behind, glm_moe_dsa.with_module, glm_moe_dsa.module_rules),
        qwen3_next.ARCHITECTURE: _beside(qwen3_next.module_rules),
        qwen3_5.ARCHITECTURE: _beside(mtp.module_rules),
        qwen3_5_moe.ARCHITECTURE: _beside(qwen3_5_moe.module_rules),
    }
)
"""By the architectures whose checkpoints may have a module for multi-token prediction."""

MODEL_TYPES: Mapping[str, str] = MappingProxyType(
    {**{family.model_type: name for name, family in FAMILIES.items()}, deepseek_v3.KIMI_K2: deepseek_v3.ARCHITECTURE}
)
"""The architecture that goes with each `model_type`."""


CAUSAL_LM, CLASSIFIER, BASE_MODEL = "ForCausalLM", "ForSequenceClassification", "Model"
"""How the names of architectures end: with a head for logits, with one that classifies, without any."""
_BASE_MODELS: Mapping[str, str] = MappingProxyType(
    {
        "Gemma3TextModel": gemma3.ARCHITECTURE,
        "Gemma4TextModel": gemma4.ARCHITECTURE,
        "Gemma4UnifiedTextModel": gemma4_unified.ARCHITECTURE,
    }
)
"""Names without a head that are not made by these rules."""


def architecture_of(hf: Mapping[str, Any]) -> str:
    """What a parsed config.json names; empty if it is not one name."""
    names = HfFields(hf).strings("architectures") or ()
    return names[0] if len(names) == 1 else ""


def _family_of(architecture: str) -> Family | None:
    """The family of an architecture, whichever head it has; encoders are called by their names without one."""
    stem = next((architecture.removesuffix(end) for end in (CLASSIFIER, BASE_MODEL) if architecture.endswith(end)), None)
    if stem is None:
        return FAMILIES.get(architecture)
    return FAMILIES.get(_BASE_MODELS.get(architecture, stem + CAUSAL_LM)) or ENCODERS.get(stem + BASE_MODEL)


def family(hf: Mapping[str, Any]) -> Family:
    """The family of a parsed config.json, whichever head its architecture has.

    Raises UnsupportedModelError: config.json names no architecture, several, or one that jaxserve does not have.
    """
    found = _family_of(architecture_of(hf))
    if found is None:
        named = ", ".join(HfFields(hf).strings("architectures") or ()) or "none"
        raise UnsupportedModelError(
            f"architecture {named} in config.json is not supported; supported are {', '.join((*FAMILIES, *ENCODERS))}, and these "
            f"without a head or with one that classifies ({BASE_MODEL}, {CLASSIFIER})",
            param="model",
        )
    return found


def decoder_config(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a parsed config.json describes.

    Raises:
        UnsupportedModelError: an architecture or a value that jaxserve does not implement, named.
        CheckpointError: a field that is missing or impossible, named.
    """
    config = family(hf).config_from_hf(hf)
    name = architecture_of(hf)
    generates = name.endswith(CAUSAL_LM) and not config.bidirectional
    if generates or hf.get("classifier_from_token"):  # which are tokens of the model that generates
        return config
    labels = len(labels_of(hf)) if name.endswith(CLASSIFIER) else 0
    return replace(config, tie_embeddings=True, has_logits=False, labels=labels)  # there is no matrix for logits


def labels_of(hf: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a classifier's outputs, as transformers has them. Raises CheckpointError."""
    named = hf.get("id2label")
    if named is None:
        return tuple(f"LABEL_{index}" for index in range(HfFields(hf).integer("num_labels", 2)))
    if not isinstance(named, dict) or not named or set(named) != {str(index) for index in range(len(named))}:
        raise CheckpointError("config.json: id2label must name the outputs 0, 1 and so on")
    return tuple(str(named[str(index)]) for index in range(len(named)))


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    """Where each tensor of a checkpoint of this decoder goes."""
    if config.fed is None:
        found = _family_of(config.architecture)
        assert found is not None, "the config was read by one"
        heads = score_rules(config) if config.encoder is None else []
        return [*found.weight_rules(config), *heads, *dense_rules(config)]
    return head_rules(config) if config.fed.module is None else MODULES[config.architecture].rules(config)
