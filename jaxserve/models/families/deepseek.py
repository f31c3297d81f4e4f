"""What the DeepSeek families share: latent attention and its weights' names, experts beside shared ones, first layers dense."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig, Experts, Routing, Scales
from jaxserve.models.expert_rules import ExpertNames
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.fields import HfFields
from jaxserve.models.latent import Indexer, Latent
from jaxserve.models.mtp import module_rules as rules_of_module
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import Output, Packing, Path, Source, WeightRule, columns, decoder_rules, whole

_NAMES = ExpertNames()


def deepseek_config(
    hf: Mapping[str, Any],
    *,
    model_type: str,
    routing: Routing,
    defaults: Mapping[str, Any],
    fixed: Mapping[str, Any],
    indexer: Indexer | None = None,
) -> DecoderConfig:
    """The decoder that a DeepSeek config.json describes.

    Args:
        hf: the parsed config.json.
        model_type: the family's.
        routing: how tokens choose experts.
        defaults: of fields that may be missing, by name.
        fixed: the only value of fields that the family has no other for.
        indexer: what chooses the tokens that attention sees, which the family has read itself; None for all.

    Raises UnsupportedModelError, CheckpointError: as `common_config`.
    """
    hf = {**defaults, **hf}
    fields = HfFields(hf)
    latent = _latent(fields, indexer)
    derived = {
        "num_key_value_heads": fields.integer("num_attention_heads"),
        "head_dim": latent.rope_dim,
        "qk_head_dim": latent.nope_dim + latent.rope_dim,
    }
    for name, value in {**fixed, **derived, "attention_bias": False, "mlp_bias": False}.items():
        if fields.has(name) and hf[name] != value:
            raise fields.unsupported(name, f"this architecture has {value!r}")
    limit, layers = fields.integer("max_position_embeddings"), fields.integer("num_hidden_layers")
    rope = replace(rope_from_hf(hf, limit), rotated_dims=latent.rope_dim)
    # What attention sees: one head of keys, whose beginnings are the values.
    seen = {"num_key_value_heads": 1, "head_dim": latent.cached}
    return common_config(
        {**hf, **seen},
        model_type=model_type,
        qkv_bias=False,
        output_bias=False,
        windows=uniform_windows(fields, None),
        max_position_embeddings=limit,
        ropes=(rope,) * layers,
        reads=frozenset({"n_routed_experts"}),
        latent=latent,
        draft_layers=fields.count("num_nextn_predict_layers", 0),
        experts=_experts(fields, routing, layers),
        scales=Scales(attention=_attention_scale(fields, latent)),
    )


def with_module(hf: Mapping[str, Any], model: DecoderConfig) -> dict[str, Any]:
    """The config.json of a model whose last layer is the module for multi-token prediction, of the last one's kind."""
    lists = {name: [*hf[name], hf[name][-1]] for name in ("mlp_layer_types", "layer_types") if hf.get(name)}
    return {**hf, **lists, "num_hidden_layers": model.num_layers + 1}


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, attention=latent_rules, experts=_NAMES.rules)


def module_rules(config: DecoderConfig) -> list[WeightRule]:
    """Of a module for multi-token prediction."""
    return rules_of_module(config, experts=_NAMES.rules, attention=latent_rules)


def dense_first(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config.json whose `first_k_dense_replace` says what its `mlp_layer_types` does, if it has them.

    Raises UnsupportedModelError: a dense layer is behind a sparse one, or layers lack an entry.
    """
    fields = HfFields(hf)
    kinds = fields.strings("mlp_layer_types")
    if kinds is None:
        return hf
    dense = kinds.count("dense")
    if kinds != ("dense",) * dense + ("sparse",) * (fields.integer("num_hidden_layers") - dense):
        raise fields.unsupported("mlp_layer_types", "dense layers come first, then sparse ones, an entry a layer")
    return {**hf, "first_k_dense_replace": dense}


def _latent(fields: HfFields, indexer: Indexer | None) -> Latent:
    if indexer is not None:
        fields.integer("q_lora_rank")  # what its queries are made of
    return Latent(
        indexer=indexer,
        query_rank=fields.integer("q_lora_rank") if fields.has("q_lora_rank") else None,
        kv_rank=fields.integer("kv_lora_rank"),
        nope_dim=fields.integer("qk_nope_head_dim"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        value_dim=fields.integer("v_head_dim"),
    )


def _experts(fields: HfFields, routing: Routing, layers: int) -> Experts | None:
    first, every = fields.count("first_k_dense_replace", 0), fields.integer("moe_layer_freq", 1)
    sparse = tuple(layer >= first and layer % every == 0 for layer in range(layers))
    if not any(sparse):
        return None
    count, active, size = (fields.integer(name) for name in ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"))
    if count % routing.groups or active > count // routing.groups * min(routing.active_groups, routing.groups):
        raise CheckpointError(
            f"config.json: num_experts_per_tok={active} cannot be chosen of {count} experts in {routing.groups} groups, "
            f"{routing.active_groups} of them active"
        )
    return Experts(
        count=count,
        active=active,
        ffn_size=size,
        layers=sparse,
        routing=routing,
        shared_ffn_size=size * fields.count("n_shared_experts", 0),
    )


def _attention_scale(fields: HfFields, latent: Latent) -> float:
    """1 / sqrt(D), times the square of YaRN's factor for all dimensions, which cosine and sine cannot carry here."""
    table = fields.table("rope_scaling") or fields.table("rope_parameters")
    scale = 1 / math.sqrt(latent.nope_dim + latent.rope_dim)
    if not table.get("mscale_all_dim"):
        return scale
    rope = HfFields(table, "config.json, rope parameters")
    factor = max(rope.number("factor"), 1.0)
    return scale * (0.1 * rope.number("mscale_all_dim") * math.log(factor) + 1.0) ** 2


def latent_rules(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    """The LayerRules of `decoder_rules` for a layer of `LatentAttention`. The config must have a `latent`."""
    latent, embed, heads = config.latent, config.hidden_size, config.num_heads
    assert latent is not None
    here, block, rank = (*path, "attention"), f"{prefix}.self_attn", latent.query_rank
    indexer = config.indexer_of(int(path[1]))
    down = [Output(f"{block}.kv_a_proj_with_mqa", latent.key_dim)]
    norms = [whole((*here, "kv_norm", "scale"), f"{block}.kv_a_layernorm.weight", (latent.kv_rank,))]
    if rank is not None:
        down.insert(0, Output(f"{block}.q_a_proj", rank))
        norms.append(whole((*here, "query_norm", "scale"), f"{block}.q_a_layernorm.weight", (rank,)))
    query = Output(f"{block}.{'q_proj' if rank is None else 'q_b_proj'}", heads * (latent.nope_dim + latent.rope_dim), heads)
    return [
        columns((*here, "down"), down, embed),
        columns((*here, "query"), [query], rank or embed),
        _by_head((*here, "key_up"), config, f"{block}.kv_b_proj.weight", 0, latent.nope_dim),
        _by_head((*here, "value_up"), config, f"{block}.kv_b_proj.weight", latent.nope_dim, latent.value_dim),
        WeightRule((*here, "out"), (Source(f"{block}.o_proj.weight", (embed, heads * latent.value_dim)),), Packing.ROWS),
        *norms,
        *([] if indexer is None else _index_rules(indexer, (*here, "indexer"), f"{block}.indexer", embed, rank or embed)),
    ]


def _index_rules(indexer: Indexer, here: Path, block: str, embed: int, rank: int) -> list[WeightRule]:
    """Of a layer's `LightningIndexer`, whose queries are projected from a latent of `rank`."""
    weights = Source(f"{block}.weights_proj.weight", (indexer.heads, embed))
    return [
        columns((*here, "query"), [Output(f"{block}.wq_b", indexer.heads * indexer.dim)], rank),
        columns((*here, "key"), [Output(f"{block}.wk", indexer.dim)], embed),
        WeightRule((*here, "weights"), (weights,), Packing.TRANSPOSED),
        whole((*here, "scale"), f"{block}.k_norm.weight", (indexer.dim,)),
        whole((*here, "bias"), f"{block}.k_norm.bias", (indexer.dim,)),
    ]


def _by_head(path: Path, config: DecoderConfig, name: str, first: int, rows: int) -> WeightRule:
    """[H, rows, kv_rank] of a matrix that has for each head its rows of keys, then those of values."""
    latent = config.latent
    assert latent is not None
    both = latent.nope_dim + latent.value_dim
    sources = [
        Source(name, (rows, latent.kv_rank), first_row=head * both + first, rows=config.num_heads * both)
        for head in range(config.num_heads)
    ]
    return WeightRule(path, tuple(sources), Packing.WHOLE, config.num_heads)
