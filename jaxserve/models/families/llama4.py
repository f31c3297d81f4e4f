"""Llama 4, text (Meta 2025): most layers attend within chunks and rotate neighbours, the others see all and know no positions.

Experts are given what they see times the sigmoid of the router's logit, beside one that every token visits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig, Experts, Routing
from jaxserve.models.families.common import common_config, layer_ropes
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.positions import QueryScale
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import Packing, Path, Source, WeightRule, decoder_rules, mlp_rules

ARCHITECTURE = "Llama4ForCausalLM"
MODEL_TYPE = "llama4_text"

_LONGEST = 131072
_CHUNKED, _FULL = "chunked_attention", "full_attention"
_READ = frozenset({"num_local_experts", "no_rope_layers", "use_qk_norm", "attn_temperature_tuning", "attention_chunk_size"})


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Llama 4 text config describes. `intermediate_size` is of experts, `intermediate_size_mlp` of other MLPs.

    Raises:
        UnsupportedModelError: a layer type or a rotation that jaxserve does not implement.
        CheckpointError: lists that do not fit the layers, or what `common_config` refuses.
    """
    fields = HfFields(hf)
    bias, experts = fields.flag("attention_bias", False), _experts(fields)
    rope = rope_from_hf(with_defaults(hf, rope_theta=500000.0), fields.integer("max_position_embeddings", _LONGEST))
    if rope.attention_factor != 1.0:
        raise fields.unsupported("rope_scaling", "a rotation of this architecture does not change lengths")
    ropes = layer_ropes(fields, replace(rope, interleaved=True))
    windows = _windows(fields, tuple(each is not None for each in ropes))
    return common_config(
        {**with_defaults(hf, rms_norm_eps=1e-5), "intermediate_size": fields.integer("intermediate_size_mlp", 16384)},
        model_type=MODEL_TYPE,
        qkv_bias=bias,
        output_bias=bias,
        windows=windows,
        chunked=True,
        max_position_embeddings=_LONGEST,
        num_kv_heads=None if "num_key_value_heads" in hf else 8,
        head_dim=128,
        reads=_READ,
        ropes=ropes,
        qk_norm="rotated" if fields.flag("use_qk_norm", True) else None,
        query_scale=_query_scale(fields),
        experts=experts,
    )


def _windows(fields: HfFields, rotates: tuple[bool, ...]) -> tuple[int | None, ...]:
    """Of the layers that `layer_types` says, by default of those that know positions: the size of their chunks."""
    chunk = None if fields.hf.get("attention_chunk_size", 8192) is None else fields.integer("attention_chunk_size", 8192)
    kinds = fields.strings("layer_types")
    if kinds is None:
        return tuple(chunk if each else None for each in rotates)
    if len(kinds) != len(rotates):
        raise CheckpointError(f"config.json: layer_types has {len(kinds)} entries for {len(rotates)} layers")
    if not set(kinds) <= {_CHUNKED, _FULL}:
        raise fields.unsupported("layer_types", f"supported are {_CHUNKED} and {_FULL}")
    if chunk is None and _CHUNKED in kinds:
        raise CheckpointError(f"config.json: layer_types has {_CHUNKED}, but attention_chunk_size is null")
    return tuple(chunk if kind == _CHUNKED else None for kind in kinds)


def _query_scale(fields: HfFields) -> QueryScale | None:
    """Published files have a 4 for `attn_temperature_tuning`."""
    if fields.hf.get("attn_temperature_tuning") in (False, 0):
        return None
    return QueryScale(beta=fields.number("attn_scale", 0.1), period=fields.integer("floor_scale", 8192), first=1, unrotated=True)


def _experts(fields: HfFields) -> Experts | None:
    layers, every = fields.integer("num_hidden_layers"), fields.integer("interleave_moe_layer_step", 1)
    listed = fields.hf.get("moe_layers")
    sparse = listed if listed is not None else range(every - 1, layers, every)
    if not all(isinstance(layer, int) and 0 <= layer < layers for layer in sparse):
        raise CheckpointError(f"config.json: moe_layers must be numbers of {layers} layers, got {listed!r:.80}")
    if not sparse:
        return None
    size = fields.integer("intermediate_size", 8192)
    return Experts(
        count=fields.integer("num_local_experts", 16),
        active=fields.integer("num_experts_per_tok", 1),
        ffn_size=size,
        layers=tuple(layer in sparse for layer in range(layers)),
        routing=Routing(score="sigmoid", normalize=False, of_inputs=True),
        shared_ffn_size=size,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, mlp=_dense, experts=_stacked)


def _dense(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    """The LayerRules of layers without experts."""
    return mlp_rules(config, (*path, "mlp"), f"{prefix}.feed_forward")


def _stacked(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    """Each projection is one tensor of all experts' matrices [in, out], gates before what they gate."""
    experts, embed = config.experts, config.hidden_size
    assert experts is not None
    count, ffn, here, block = experts.count, experts.ffn_size, (*path, "mlp"), f"{prefix}.feed_forward"
    part = partial(Source, experts=count, transposed=True)
    inputs = [
        part(f"{block}.experts.gate_up_proj", (ffn, embed), first_row=first, rows=2 * ffn, expert=expert)
        for expert in range(count)
        for first in (0, ffn)
    ]
    outputs = [part(f"{block}.experts.down_proj", (embed, ffn), expert=expert) for expert in range(count)]
    shared = mlp_rules(replace(config, ffn_size=experts.shared_ffn_size), (*here, "shared"), f"{block}.shared_expert")
    return [
        WeightRule((*here, "router"), (Source(f"{block}.router.weight", (count, embed)),), Packing.TRANSPOSED),
        WeightRule((*here, "gate_up"), tuple(inputs), Packing.COLUMNS, count),
        WeightRule((*here, "down"), tuple(outputs), Packing.ROWS, count),
        *shared,
    ]
