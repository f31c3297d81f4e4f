"""Gemma 4 (Gemma Team 2026), text: layers that see everything have heads of their own, the last layers read others' keys.

E2B and E4B give every layer numbers of each token besides, and share keys; 26B-A4B has experts beside its MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig, Experts, Heads, Routing, Scales
from jaxserve.models.families.common import common_config, sliding_layers, windows_of
from jaxserve.models.fields import HfFields
from jaxserve.models.positions import RopeConfig
from jaxserve.models.rope_config import ropes_by_kind
from jaxserve.models.rules import Packing, Path, Source, WeightRule, decoder_rules, mlp_rules, whole

ARCHITECTURE = "Gemma4ForCausalLM"
MODEL_TYPE = "gemma4_text"

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 262144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 512,
        "max_position_embeddings": 131072,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "eos_token_id": 1,
    }
)
_GLOBAL_HEAD_DIM = 512
_THETAS = (1e4, 1e6)
_ROPES: Mapping[str, Any] = MappingProxyType(
    {
        "sliding_attention": {"rope_type": "default"},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    }
)
_ACTIVATION = "gelu_pytorch_tanh"
_READS = frozenset(
    {
        "hidden_act",
        "hidden_activation",
        "final_logit_softcapping",
        "use_bidirectional_attention",
        "num_experts",
        "per_layer_config",
    }
)


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Gemma 4 text config.json describes. Fields with the family's defaults may be missing.

    Raises UnsupportedModelError, CheckpointError: as `common_config`.
    """
    return gemma4_config({**DEFAULTS, **hf}, MODEL_TYPE)


def gemma4_config(hf: Mapping[str, Any], model_type: str) -> DecoderConfig:
    """The same for any model type, with the defaults filled in."""
    fields = HfFields(hf)
    if hf.get("hidden_activation", _ACTIVATION) != _ACTIVATION:
        raise fields.unsupported("hidden_activation", f"supported is {_ACTIVATION}")
    if hf.get("use_bidirectional_attention") not in (None, "vision"):  # of images: tokens of texts see none behind them
        raise fields.unsupported("use_bidirectional_attention", "supported are null and 'vision'")
    sliding = (*sliding_layers(fields, lambda layer: (layer + 1) % 6 != 0)[:-1], False)  # whatever the file says of the last
    heads = _heads(fields, sliding)
    sources = _sources(fields, sliding)
    bias, cap = fields.flag("attention_bias", False), "final_logit_softcapping"
    return common_config(
        hf,
        model_type=model_type,
        qkv_bias=bias,
        output_bias=bias,
        tie_embeddings=True,
        windows=windows_of(sliding, fields.integer("sliding_window")),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        reads=_READS,
        ropes=_ropes(fields, sliding, heads),
        norms="around",
        qk_norm="head",
        activation="gelu_tanh",
        scales=Scales(
            embedding=fields.integer("hidden_size") ** 0.5,
            attention=1.0,
            logits_cap=fields.number(cap) if fields.has(cap) else None,
        ),
        experts=_experts(fields, len(sliding)),
        heads=heads if len(set(heads)) > 1 or heads[0].values_are_keys else (),
        kv_sources=sources if sources != tuple(range(len(sliding))) else (),
        value_norm=True,
        ffn_sizes=_ffn_sizes(fields, sources),
        layer_input=_layer_input(fields),
        layer_scales=True,
    )


def _heads(fields: HfFields, sliding: tuple[bool, ...]) -> tuple[Heads, ...]:
    """Of each layer: as `per_layer_config` says, which transformers writes, or as published files say of full attention."""
    alike = fields.flag("attention_k_eq_v", False)
    own = {"head_dim": fields.integer("head_dim"), "num_key_value_heads": fields.integer("num_key_value_heads")}
    if "per_layer_config" in fields.hf:
        tables = fields.table("per_layer_config")
        changes = [HfFields(tables, "config.json, per_layer_config").table(str(layer)) for layer in range(len(sliding))]
        known = {str(layer) for layer in range(len(sliding))}
        if others := sorted((tables.keys() - known) | {name for change in changes for name in change.keys() - own.keys()}):
            raise fields.unsupported("per_layer_config", f"supported are {' and '.join(own)} of single layers, not {others[0]}")
    else:
        whole = {"head_dim": fields.integer("global_head_dim", _GLOBAL_HEAD_DIM)}
        if alike and fields.has("num_global_key_value_heads"):
            whole["num_key_value_heads"] = fields.integer("num_global_key_value_heads")
        changes = [{} if each else whole for each in sliding]
    found = [HfFields({**own, **change}, "config.json, layers with full attention") for change in changes]
    heads = tuple(
        Heads(
            kv_heads=each.integer("num_key_value_heads"),
            head_dim=each.integer("head_dim"),
            values_are_keys=alike and not slides,
        )
        for each, slides in zip(found, sliding, strict=True)
    )
    if len(set(zip(heads, sliding, strict=True))) > len(set(sliding)):
        raise fields.unsupported("per_layer_config", "layers of one type have the same heads")
    queries = fields.integer("num_attention_heads")
    for each in heads:
        if queries % each.kv_heads or each.head_dim % 2:
            raise CheckpointError(
                f"config.json: {each.kv_heads} kv heads of {each.head_dim} in layers with full attention: num_attention_heads="
                f"{queries} must be a multiple, and their size even"
            )
    return heads


def _ropes(fields: HfFields, sliding: tuple[bool, ...], heads: tuple[Heads, ...]) -> tuple[RopeConfig, ...]:
    parameters = {"rope_parameters": dict(_ROPES), **{name: value for name, value in fields.hf.items() if value is not None}}
    last = heads[-1].head_dim  # which sees everything
    limit = fields.integer("max_position_embeddings")
    first = next((each.head_dim for each, slides in zip(heads, sliding, strict=True) if slides), last)
    ropes = ropes_by_kind(HfFields(parameters), limit, _THETAS, (first, last))
    if ropes is None:
        raise fields.unsupported("rope_parameters", "there must be a table for sliding_attention and one for full_attention")
    local, whole = ropes
    return tuple(local if each else whole for each in sliding)


def _sources(fields: HfFields, sliding: tuple[bool, ...]) -> tuple[int, ...]:
    """Whose keys and values each layer reads: the last `num_kv_shared_layers` those of the last one of their type before."""
    layers, shared = len(sliding), fields.count("num_kv_shared_layers", 0)
    first = layers - shared
    if shared and not set(sliding) <= set(sliding[: max(first, 0)]):
        raise CheckpointError(
            f"config.json: num_kv_shared_layers={shared} of {layers} layers leaves a type of layers without keys and values"
        )
    last = {sliding[layer]: layer for layer in range(first)}
    return tuple(layer if layer < first else last[sliding[layer]] for layer in range(layers))


def _ffn_sizes(fields: HfFields, sources: tuple[int, ...]) -> tuple[int, ...]:
    """Of each layer, if those without keys and values of their own have twice the MLP."""
    size = fields.integer("intermediate_size")
    sizes = tuple(size if source == layer else 2 * size for layer, source in enumerate(sources))
    return sizes if fields.flag("use_double_wide_mlp", False) and set(sizes) != {size} else ()


def _layer_input(fields: HfFields) -> int:
    size, vocab_size = fields.count("hidden_size_per_layer_input", 0), fields.integer("vocab_size")
    if size and fields.integer("vocab_size_per_layer_input") != vocab_size:
        raise fields.unsupported("vocab_size_per_layer_input", f"it must be vocab_size, {vocab_size}")
    return size


def _experts(fields: HfFields, layers: int) -> Experts | None:
    if not fields.flag("enable_moe_block", False):
        return None
    if fields.flag("use_double_wide_mlp", False):
        raise fields.unsupported("use_double_wide_mlp", "models with experts have one MLP in all layers")
    return Experts(
        count=fields.integer("num_experts"),
        active=fields.integer("top_k_experts"),
        ffn_size=fields.integer("moe_intermediate_size"),
        layers=(True,) * layers,
        routing=Routing(scaled=True),
        shared_ffn_size=fields.integer("intermediate_size"),
        apart=True,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    rules = decoder_rules(config, experts=_beside_mlp)
    layers, size, embed = config.num_layers, config.layer_input, config.hidden_size
    scales = tuple(Source(f"model.layers.{layer}.layer_scalar", (1,)) for layer in range(layers))
    rules.append(WeightRule(("layer_scales", "scale"), scales, Packing.WHOLE, layers))
    if not size:
        return rules
    projection = Source("model.per_layer_model_projection.weight", (layers * size, embed))
    rules += [
        whole(("inputs", "table"), "model.embed_tokens_per_layer.weight", (config.vocab_size, layers * size)),
        WeightRule(("inputs", "projection"), (projection,), Packing.COLUMNS),
        whole(("inputs", "norm", "scale"), "model.per_layer_projection_norm.weight", (size,)),
    ]
    for layer in range(layers):
        path, prefix = ("layers", str(layer), "input"), f"model.layers.{layer}"
        gate = Source(f"{prefix}.per_layer_input_gate.weight", (size, embed))
        up = Source(f"{prefix}.per_layer_projection.weight", (embed, size))
        rules += [WeightRule((*path, "gate"), (gate,), Packing.COLUMNS), WeightRule((*path, "up"), (up,), Packing.ROWS)]
    return rules


def _beside_mlp(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    """Rules of a layer's experts, each projection one tensor of all, and of the MLP beside them."""
    experts, embed, here = config.experts, config.hidden_size, (*path, "mlp")
    assert experts is not None
    count, ffn, inputs, outputs = experts.count, experts.ffn_size, f"{prefix}.experts.gate_up_proj", f"{prefix}.experts.down_proj"
    part = partial(Source, experts=count)
    both = [part(inputs, (ffn, embed), first_row=row, rows=2 * ffn, expert=expert) for expert in range(count) for row in (0, ffn)]
    down = [part(outputs, (embed, ffn), expert=expert) for expert in range(count)]
    return [
        WeightRule((*here, "router"), (Source(f"{prefix}.router.proj.weight", (count, embed)),), Packing.TRANSPOSED),
        whole((*here, "router_norm", "scale"), f"{prefix}.router.scale", (embed,)),
        whole((*here, "expert_scale"), f"{prefix}.router.per_expert_scale", (count,)),
        WeightRule((*here, "gate_up"), tuple(both), Packing.COLUMNS, count),
        WeightRule((*here, "down"), tuple(down), Packing.ROWS, count),
        *mlp_rules(config, (*here, "shared"), f"{prefix}.mlp"),
    ]
