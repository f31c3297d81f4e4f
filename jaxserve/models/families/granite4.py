"""Granite 4 (IBM 2025): Granite 3's factors, most layers Mamba-2, an MLP that every token visits, and maybe experts beside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig, Experts, Routing
from jaxserve.models.families.common import common_config, recurrent_layers
from jaxserve.models.families.granite import FACTORS, granite_scales
from jaxserve.models.fields import HfFields
from jaxserve.models.mamba_rules import mamba_rules
from jaxserve.models.recurrent import Mamba2
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import Packing, Path, Source, WeightRule, decoder_rules

ARCHITECTURE = "GraniteMoeHybridForCausalLM"
MODEL_TYPE = "granitemoehybrid"

_LONGEST = 2048
_RECURRENT, _ATTENDING = ("mamba", "linear_attention"), ("attention", "full_attention")  # transformers 4 and 5


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Granite 4 config.json describes; positions are rotated only where `position_embedding_type` is rope.

    Raises:
        UnsupportedModelError: a layer type, an embedding of positions or a projection that jaxserve does not implement.
        CheckpointError: no layer with attention, heads that do not divide, or what `common_config` refuses.
    """
    fields = HfFields(hf)
    bias, mamba = fields.flag("attention_bias", False), _mamba(fields)
    positions = hf.get("position_embedding_type")
    if positions not in (None, "nope", "rope"):
        raise fields.unsupported("position_embedding_type", "supported are rope and nope")
    rope = rope_from_hf(hf, fields.integer("max_position_embeddings", _LONGEST)) if positions == "rope" else None
    layers, count = fields.integer("num_hidden_layers"), fields.count("num_local_experts", 8)
    shared = fields.integer("shared_intermediate_size", 1024)
    experts = None
    if count:
        experts = Experts(
            count=count,
            active=fields.integer("num_experts_per_tok", 2),
            ffn_size=fields.integer("intermediate_size", 11008),
            layers=(True,) * layers,
            routing=Routing(),
            shared_ffn_size=shared,
        )
    return common_config(
        {**hf, "intermediate_size": shared},
        model_type=MODEL_TYPE,
        qkv_bias=bias,
        output_bias=bias,
        windows=(None,) * layers,
        max_position_embeddings=_LONGEST,
        reads=FACTORS | {"num_local_experts"},
        ropes=tuple(None if each else rope for each in mamba.layers),
        scales=granite_scales(fields),
        experts=experts,
        recurrent=mamba if any(mamba.layers) else None,
    )


def _mamba(fields: HfFields) -> Mamba2:
    layers, kinds = fields.integer("num_hidden_layers"), fields.strings("layer_types") or fields.strings("layers_block_type")
    if kinds is None:
        kinds = (_RECURRENT[0],) * layers
    recurrent = recurrent_layers(fields, kinds, recurrent=_RECURRENT, attending=_ATTENDING)
    if fields.flag("mamba_proj_bias", False):
        raise fields.unsupported("mamba_proj_bias", "projections of Mamba layers add no bias")
    heads, groups = fields.integer("mamba_n_heads", 128), fields.integer("mamba_n_groups", 1)
    inner, width = fields.integer("mamba_expand", 2) * fields.integer("hidden_size"), fields.integer("mamba_d_conv", 4)
    asked = fields.hf.get("mamba_d_head")
    value_dim = inner // heads if asked in (None, "auto") else fields.integer("mamba_d_head")
    if heads % groups or heads * value_dim != inner or width < 2:
        raise CheckpointError(
            f"config.json: mamba_n_heads={heads} must be a multiple of mamba_n_groups={groups}, and with mamba_d_head={value_dim}"
            f" make mamba_expand * hidden_size={inner}; mamba_d_conv={width} must be 2 or more"
        )
    return Mamba2(
        layers=recurrent,
        width=width,
        key_heads=groups,
        heads=heads,
        key_dim=fields.integer("mamba_d_state", 256),
        value_dim=value_dim,
        conv_bias=fields.flag("mamba_conv_bias", True),
        steps=step_bounds(fields),
    )


def step_bounds(fields: HfFields) -> tuple[float, float]:
    """Bounds of the size of a step. JSON has no infinity: transformers 5 writes {"__float__": "Infinity"}."""
    limit = fields.hf.get("time_step_limit")
    if limit is None:
        return 0.0, math.inf
    given: list[Any] = limit if isinstance(limit, list) else []
    bounds: list[Any] = [each.get("__float__") if isinstance(each, dict) else each for each in given]
    if len(bounds) != 2 or not all(isinstance(bound, int | float) or bound == "Infinity" for bound in bounds):
        raise CheckpointError(f"config.json: time_step_limit must be two numbers, got {limit!r:.80}")
    return float(bounds[0]), float(bounds[1])


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, experts=_experts, recurrent=mamba_rules, mlp=_shared)


def _shared(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    """The LayerRules of the MLP that every token visits."""
    return _mlp((*path, "mlp"), f"{prefix}.shared_mlp", config.hidden_size, config.ffn_size)


def _experts(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    """The LayerRules of experts beside it."""
    experts, embed, stored = config.experts, config.hidden_size, f"{prefix}.block_sparse_moe"
    assert experts is not None
    here, ffn, count = (*path, "mlp"), experts.ffn_size, experts.count
    inputs = [
        Source(f"{stored}.input_linear.weight", (ffn, embed), None, first, 2 * ffn, expert=expert, experts=count)
        for expert in range(count)
        for first in (0, ffn)
    ]
    outputs = [Source(f"{stored}.output_linear.weight", (embed, ffn), expert=expert, experts=count) for expert in range(count)]
    return [
        WeightRule((*here, "router"), (Source(f"{stored}.router.layer.weight", (count, embed)),), Packing.TRANSPOSED),
        WeightRule((*here, "gate_up"), tuple(inputs), Packing.COLUMNS, count),
        WeightRule((*here, "down"), tuple(outputs), Packing.ROWS, count),
        *_mlp((*here, "shared"), f"{prefix}.shared_mlp", embed, experts.shared_ffn_size),
    ]


def _mlp(path: Path, stored: str, embed: int, ffn: int) -> list[WeightRule]:
    halves = tuple(Source(f"{stored}.input_linear.weight", (ffn, embed), None, first, 2 * ffn) for first in (0, ffn))
    return [
        WeightRule((*path, "gate_up"), halves, Packing.COLUMNS),
        WeightRule((*path, "down"), (Source(f"{stored}.output_linear.weight", (embed, ffn)),), Packing.ROWS),
    ]
