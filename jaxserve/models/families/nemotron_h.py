"""Nemotron-H, Nemotron Nano 2 and Nemotron 3 (NVIDIA 2025): Mamba-2 in most layers, no positions, squared ReLU without a gate.

A block of theirs is a state space, attention, an MLP or experts, behind a norm of its own: a state space or attention, and the
MLP or experts behind it if there are any, are one layer here. Experts are chosen as in DeepSeek-V3; those of the larger
Nemotron 3 see and make latents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig, Experts
from jaxserve.models.expert_rules import ExpertNames
from jaxserve.models.families.common import common_config
from jaxserve.models.families.deepseek_v3 import routing_of
from jaxserve.models.families.granite4 import step_bounds
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.mamba_rules import mamba_rules
from jaxserve.models.recurrent import Mamba2
from jaxserve.models.rules import WeightRule, decoder_rules

ARCHITECTURE = "NemotronHForCausalLM"
MODEL_TYPE = "nemotron_h"

_LONGEST = 4096
_ATTENTION, _MAMBA, _MLP, _EXPERTS = "full_attention", "linear_attention", "mlp", "moe"
_LETTERS = {"M": _MAMBA, "*": _ATTENTION, "-": _MLP, "E": _EXPERTS}
_FIRST_NAMES = {"attention": _ATTENTION, "mamba": _MAMBA}  # of transformers before 5
_READ = frozenset({"n_routed_experts"})
_NAMES = ExpertNames()
# What most families call the parts of a layer: here each is the mixer of a block, and its norm the block's.
_MIXERS = ("self_attn", "mamba", "mlp")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_OTHERS: Mapping[str, str] = MappingProxyType({"model.embed_tokens.": "backbone.embeddings.", "model.norm.": "backbone.norm_f."})


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Nemotron-H config.json describes.

    Raises:
        UnsupportedModelError: biases, another activation, or MLPs one behind the other.
        CheckpointError: no attention, heads that do not divide, or what `common_config` refuses.
    """
    fields = HfFields(hf)
    blocks = _blocks(fields)
    layers, behind = _layers(fields, blocks)
    bias = fields.flag("attention_bias", False)
    for name in ("use_bias", "mamba_proj_bias"):
        if fields.flag(name, False):
            raise fields.unsupported(name, "supported is false")
    if hf.get("mlp_hidden_act", "relu2") != "relu2":
        raise fields.unsupported("mlp_hidden_act", "supported is relu2")
    if hf.get("mamba_hidden_act", "silu") != "silu":
        raise fields.unsupported("mamba_hidden_act", "supported is silu")
    if fields.has("sliding_window"):
        raise fields.unsupported("sliding_window", "layers of this architecture see every position")
    recurrent, dense = tuple(kind == _MAMBA for kind in layers), tuple(kind == _MLP for kind in behind)
    size, eps = fields.integer("intermediate_size", 21504), fields.number("layer_norm_epsilon", 1e-5)
    return common_config(
        {**hf, "intermediate_size": size, "num_hidden_layers": len(layers), "rms_norm_eps": eps},
        model_type=MODEL_TYPE,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        num_kv_heads=8,
        head_dim=128,
        windows=(None,) * len(layers),
        max_position_embeddings=_LONGEST,
        reads=_READ,
        ropes=(None,) * len(layers),
        activation="relu2",
        gated=False,
        ffn_sizes=() if all(dense) else tuple(size * each for each in dense),
        experts=_experts(fields, tuple(kind == _EXPERTS for kind in behind)),
        recurrent=_mamba(fields, recurrent) if any(recurrent) else None,
    )


def _blocks(fields: HfFields) -> tuple[str, ...]:
    """The kind of every block, from its list or from the older string of letters."""
    listed, pattern = (
        fields.strings("layers_block_type") or fields.strings("layer_types"),
        fields.hf.get("hybrid_override_pattern"),
    )
    if listed is not None:
        blocks = tuple(_FIRST_NAMES.get(kind, kind) for kind in listed)
        name = "layers_block_type"
    elif isinstance(pattern, str):
        blocks, name = tuple(_LETTERS.get(letter, letter) for letter in pattern), "hybrid_override_pattern"
    else:
        raise CheckpointError("config.json lacks layers_block_type or hybrid_override_pattern")
    if not blocks:
        raise CheckpointError(f"config.json: {name} is empty")
    if not set(blocks) <= {_ATTENTION, _MAMBA, _MLP, _EXPERTS}:
        raise fields.unsupported(name, "supported are state spaces, attention, MLPs and experts")
    if _ATTENTION not in blocks:
        raise CheckpointError(f"config.json: {name} has no attention, of which there must be one block or more")
    if fields.has("num_hidden_layers") and fields.integer("num_hidden_layers") != len(blocks):
        raise CheckpointError(f"config.json: {name} has {len(blocks)} entries for {fields.integer('num_hidden_layers')} layers")
    return blocks


def _layers(fields: HfFields, blocks: Sequence[str]) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    """The kind of the block that each layer begins with, and of the one behind it: an MLP, experts or None."""
    layers, behind = list[str](), list[str | None]()
    for kind in blocks:
        if kind not in (_MLP, _EXPERTS):
            layers.append(kind)
            behind.append(None)
        elif not layers or behind[-1] is not None:
            name = "hybrid_override_pattern" if fields.has("hybrid_override_pattern") else "layers_block_type"
            raise fields.unsupported(name, "an MLP or experts come behind a state space or attention")
        else:
            behind[-1] = kind
    return tuple(layers), tuple(behind)


def _experts(fields: HfFields, layers: tuple[bool, ...]) -> Experts | None:
    if not any(layers):
        return None
    if fields.flag("mlp_bias", False):
        raise fields.unsupported("mlp_bias", "with experts, supported is false")
    if fields.count("n_shared_experts", 1) != 1:
        raise fields.unsupported("n_shared_experts", "supported is 1")
    return Experts(
        count=fields.integer("n_routed_experts", 8),
        active=fields.integer("num_experts_per_tok", 2),
        ffn_size=fields.integer("moe_intermediate_size", 7688),
        layers=layers,
        routing=routing_of(HfFields(with_defaults(fields.hf, routed_scaling_factor=1.0, n_group=1, topk_group=1))),
        shared_ffn_size=fields.integer("moe_shared_expert_intermediate_size", 7688),
        latent_size=fields.integer("moe_latent_size") if fields.has("moe_latent_size") else 0,
    )


def _mamba(fields: HfFields, layers: tuple[bool, ...]) -> Mamba2:
    heads, groups = fields.integer("mamba_num_heads", 128), fields.integer("n_groups", 8)
    width = fields.integer("conv_kernel", 4)
    if heads % groups or width < 2:
        raise CheckpointError(
            f"config.json: mamba_num_heads={heads} must be a multiple of n_groups={groups}, and conv_kernel={width} 2 or more"
        )
    return Mamba2(
        layers=layers,
        width=width,
        key_heads=groups,
        heads=heads,
        key_dim=fields.integer("ssm_state_size", 128),
        value_dim=fields.integer("mamba_head_dim", 64),
        conv_bias=fields.flag("use_conv_bias", True),
        steps=step_bounds(fields),
        fields=("mamba_num_heads", "n_groups"),
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    before = tuple(accumulate((1 + config.has_mlp(layer) for layer in range(config.num_layers)), initial=0))

    def stored(name: str) -> str:
        if (found := re.match(r"model\.layers\.(\d+)\.(\w+)\.(.*)", name)) is None:
            usual = next((usual for usual in _OTHERS if name.startswith(usual)), "")
            return name.replace(usual, _OTHERS[usual]) if usual else name
        layer, part, rest = found.groups()
        block = before[int(layer)] + (part in ("mlp", _NORMS[1]))
        return f"backbone.layers.{block}.{'mixer' if part in _MIXERS else 'norm'}.{rest}"

    rules = decoder_rules(config, recurrent=mamba_rules, experts=_NAMES.rules)
    return [replace(rule, sources=tuple(replace(each, name=stored(each.name)) for each in rule.sources)) for rule in rules]
