"""DeepSeek-V3.2 (2025): V3's layers, in which an indexer chooses the cached tokens that attention sees."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig
from jaxserve.models.families import deepseek, deepseek_v3
from jaxserve.models.fields import HfFields
from jaxserve.models.latent import Indexer

ARCHITECTURE = "DeepseekV32ForCausalLM"
MODEL_TYPE = "deepseek_v32"
ATTENTION = "indexed_attention"
_OLD_ATTENTION = "deepseek_sparse_attention"  # of transformers before 5.18

_DEFAULTS: Mapping[str, Any] = MappingProxyType({**deepseek_v3.DEFAULTS, "max_position_embeddings": 163840})


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
        fixed={**deepseek_v3.FIXED, "indexer_rope_interleave": False},
        indexer=indexer_of(fields, heads=64, layers=(True,) * fields.integer("num_hidden_layers")),
    )


def indexer_of(fields: HfFields, heads: int, layers: tuple[bool, ...], *, interleaved: bool = False) -> Indexer:
    """What config.json says of the indexer.

    Args:
        fields: of config.json.
        heads: the family's default.
        layers, interleaved: as in Indexer.

    Raises UnsupportedModelError, CheckpointError: a layer has other attention, or keys have less numbers than are rotated.
    """
    kinds = fields.strings("layer_types")
    if kinds is not None and kinds not in ((ATTENTION,) * len(layers), (_OLD_ATTENTION,) * len(layers)):
        raise fields.unsupported("layer_types", f"every layer has {ATTENTION!r}")
    dim, rotated = fields.integer("index_head_dim", 128), fields.integer("qk_rope_head_dim")
    if dim < rotated:
        raise CheckpointError(f"config.json: index_head_dim={dim} is less than the {rotated} that are rotated of it")
    return Indexer(
        heads=fields.integer("index_n_heads", heads),
        dim=dim,
        top_k=fields.integer("index_topk", 2048),
        layers=layers,
        interleaved=interleaved,
    )


weight_rules = deepseek.weight_rules
module_rules = deepseek.module_rules
