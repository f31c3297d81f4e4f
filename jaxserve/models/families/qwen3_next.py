"""Qwen3-Next (Qwen Team 2025): three of four layers are gated delta nets, one has attention with an output gate; experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig, Experts
from jaxserve.models.delta_net_rules import interleaved_rules
from jaxserve.models.expert_rules import ExpertNames
from jaxserve.models.families.common import common_config, recurrent_layers
from jaxserve.models.families.qwen2_moe import sparse_experts
from jaxserve.models.fields import HfFields
from jaxserve.models.mtp import module_rules as rules_of_module
from jaxserve.models.recurrent import DeltaNet
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "Qwen3NextForCausalLM"
MODEL_TYPE = "qwen3_next"

_NAMES = ExpertNames(shared="shared_expert")
_LONGEST = 32768
_KINDS = ("linear_attention", "full_attention")


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Qwen3-Next config.json describes.

    Raises UnsupportedModelError, CheckpointError: as `hybrid_config`.
    """
    hf = {"norm_topk_prob": True, "num_key_value_heads": 2, **hf}
    fields = HfFields(hf)
    count = fields.count("num_local_experts", fields.count("num_experts", 512))
    shared = fields.integer("shared_expert_intermediate_size", 512)
    experts = sparse_experts(fields, count=count, active=10, ffn_size=512, shared_ffn_size=shared, shared_gate=True)
    return hybrid_config(hf, MODEL_TYPE, experts, interleaved=True)


def hybrid_config(hf: Mapping[str, Any], model_type: str, experts: Experts | None, *, interleaved: bool) -> DecoderConfig:
    """The decoder of Qwen's hybrids; `interleaved` as in DeltaNet.

    Raises:
        UnsupportedModelError: a layer type other than linear or full attention, or what `common_config` refuses.
        CheckpointError: no layer with full attention, or what `common_config` and `rope_from_hf` refuse.
    """
    hf = {"partial_rotary_factor": 0.25, "head_dim": 256, **{name: value for name, value in hf.items() if value is not None}}
    fields = HfFields(hf)
    layers, bias = fields.integer("num_hidden_layers"), fields.flag("attention_bias", False)
    linear = linear_layers(fields)
    rope = rope_from_hf(hf, fields.integer("max_position_embeddings", _LONGEST), partly=fields.integer("head_dim"))
    net = DeltaNet(
        layers=linear,
        width=fields.integer("linear_conv_kernel_dim", 4),
        key_heads=fields.integer("linear_num_key_heads", 16),
        heads=fields.integer("linear_num_value_heads", 32),
        key_dim=fields.integer("linear_key_head_dim", 128),
        value_dim=fields.integer("linear_value_head_dim", 128),
        interleaved=interleaved,
    )
    if net.width < 2 or net.heads % net.key_heads:
        raise CheckpointError(
            f"config.json: linear_conv_kernel_dim must be 2 or more, and linear_num_value_heads a multiple of "
            f"linear_num_key_heads, got {net.width}, {net.heads} and {net.key_heads}"
        )
    return common_config(
        hf,
        model_type=model_type,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="head",
        norm_offset=1.0,
        output_gate=True,
        windows=(None,) * layers,
        max_position_embeddings=_LONGEST,
        reads=frozenset({"num_experts", "num_local_experts", "partial_rotary_factor"}),
        ropes=tuple(None if each else rope for each in linear),
        experts=experts,
        draft_layers=fields.count("mtp_num_hidden_layers", 1),
        recurrent=net if any(linear) else None,
    )


def linear_layers(fields: HfFields) -> tuple[bool, ...]:
    """Which layers are no attention: as `layer_types` says, by default all but every `full_attention_interval`th.

    Raises UnsupportedModelError, CheckpointError: as `hybrid_config`.
    """
    layers, kinds = fields.integer("num_hidden_layers"), fields.strings("layer_types")
    every = fields.integer("full_attention_interval", 4)
    if kinds is None:
        kinds = tuple(_KINDS[(layer + 1) % every == 0] for layer in range(layers))
    return recurrent_layers(fields, kinds, recurrent=_KINDS[:1], attending=_KINDS[1:])


def with_module(hf: Mapping[str, Any], model: DecoderConfig) -> dict[str, Any]:
    """The config.json of a model whose last layer is the module for multi-token prediction, which has attention."""
    kinds = [_KINDS[model.recurrent_of(layer) is None] for layer in range(model.num_layers)]
    return {**hf, "num_hidden_layers": model.num_layers + 1, "layer_types": [*kinds, _KINDS[1]]}


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, experts=_NAMES.rules, recurrent=interleaved_rules)


def module_rules(config: DecoderConfig) -> list[WeightRule]:
    """Of a module for multi-token prediction."""
    return rules_of_module(config, experts=_NAMES.rules)
