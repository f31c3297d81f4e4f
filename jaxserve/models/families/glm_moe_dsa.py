"""GLM-5 (GLM Team 2026): DeepSeek-V3.2's layers, of which from 5.2 on some share what the indexer of one before them chose."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig
from jaxserve.models.families import deepseek, deepseek_v3
from jaxserve.models.families.deepseek_v32 import indexer_of
from jaxserve.models.fields import HfFields

ARCHITECTURE = "GlmMoeDsaForCausalLM"
MODEL_TYPE = "glm_moe_dsa"

_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "q_lora_rank": 2048,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-5,
        "n_group": 1,
        "topk_group": 1,
    }
)
_KINDS = ("full", "shared")
_LETTERS: Mapping[str, str] = MappingProxyType({"F": "full", "S": "shared"})


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a config.json describes.

    Raises UnsupportedModelError, CheckpointError: as `common_config`.
    """
    hf = deepseek.dense_first({**_DEFAULTS, **hf})
    fields = HfFields(hf)
    return deepseek.deepseek_config(
        {**hf, "layer_types": None},  # which have been read
        model_type=MODEL_TYPE,
        routing=deepseek_v3.routing_of(fields),
        defaults=_DEFAULTS,
        fixed={**deepseek_v3.FIXED, "indexer_rope_interleave": True},
        indexer=indexer_of(fields, heads=32, layers=_choosing(fields), interleaved=True),
    )


def with_module(hf: Mapping[str, Any], model: DecoderConfig) -> dict[str, Any]:
    """The config.json of a model whose last layer is the module for multi-token prediction, which has an indexer of its own."""
    assert model.latent is not None
    assert model.latent.indexer is not None
    kinds = [_KINDS[not chooses] for chooses in (*model.latent.indexer.layers, True)]
    return {**deepseek.with_module(hf, model), "indexer_types": kinds}


def _choosing(fields: HfFields) -> tuple[bool, ...]:
    """Which layers choose: by `indexer_types`, or else by a pattern of letters, or by how many share after the first ones."""
    layers = fields.integer("num_hidden_layers")
    kinds = fields.strings("indexer_types")
    pattern = fields.hf.get("index_topk_pattern")
    if kinds is None and isinstance(pattern, str):
        kinds = tuple(_LETTERS.get(letter, letter) for letter in pattern)
    elif kinds is None:
        kinds = fields.strings("index_topk_pattern")
    if kinds is None:
        every, first = fields.integer("index_topk_freq", 1), fields.count("index_skip_topk_offset", 2)
        kinds = tuple(_KINDS[max(layer - first + 1, 0) % every != 0] for layer in range(layers))
    if len(kinds) != layers or set(kinds) - set(_KINDS) or kinds[0] != _KINDS[0]:
        raise CheckpointError(
            f"config.json: indexer_types must be {' or '.join(map(repr, _KINDS))} for each of {layers} layers, the first one "
            f"{_KINDS[0]!r}, got {list(kinds)!r:.80}"
        )
    return tuple(kind == _KINDS[0] for kind in kinds)


weight_rules = deepseek.weight_rules
module_rules = deepseek.module_rules
