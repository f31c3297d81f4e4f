"""From config.json to a shape. More families than the engine serves: planning needs sizes, not weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.fields import HfFields
from jaxserve.models.registry import MODEL_TYPES as SERVED
from jaxserve.models.registry import decoder_config
from jaxserve.planner.shape import Experts, Latent, ModelShape

_PLANNED_ONLY = ("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss")
MODEL_TYPES = (*SERVED, *_PLANNED_ONLY)
_DEEPSEEK = ("deepseek_v2", "deepseek_v3")


def shape_from_hf(hf: Mapping[str, Any], name: str, where: str = "config.json") -> ModelShape:
    """The shape that a parsed config.json describes.

    Raises:
        UnsupportedModelError: a model type the planner does not know.
        CheckpointError: a field that is missing or impossible, named.
    """
    kind, fields = hf.get("model_type"), HfFields(hf, where)
    if kind not in MODEL_TYPES:
        raise UnsupportedModelError(
            f"{where}: model_type {kind!r} is not known to the planner; known are {', '.join(MODEL_TYPES)}", param="model"
        )
    if kind in SERVED:
        return _of_decoder(hf, name)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(f"{where}: {heads} heads cannot share {kv_heads} KV heads evenly", param="model")
    if not fields.has("head_dim") and hidden % heads:
        raise CheckpointError(f"{where}: lacks head_dim, and hidden_size {hidden} is no multiple of {heads} heads", param="model")
    bias = fields.flag("attention_bias", kind == "gpt_oss")
    return ModelShape(
        name=name,
        nominal_billions=fields.number("nominal_billions") if fields.has("nominal_billions") else None,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=fields.integer("head_dim", max(hidden // heads, 1)),
        ffn_size=fields.integer("intermediate_size"),
        windows=_windows(fields, str(kind)),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", kind == "gpt_oss"),
        norms=_norms(fields, str(kind)),
        sinks=kind == "gpt_oss",
        experts=_experts(fields, str(kind)),
        latent=_latent(fields) if kind in _DEEPSEEK else None,
    )


def _of_decoder(hf: Mapping[str, Any], name: str) -> ModelShape:
    """The shape of a model that the engine serves, as the engine reads it, but for how a checkpoint is quantised."""
    plain = {key: value for key, value in hf.items() if key != "quantization_config"}
    decoder = decoder_config(plain | {"architectures": [SERVED[hf["model_type"]]]})
    fields = HfFields(hf)
    return ModelShape(
        name=name,
        nominal_billions=fields.number("nominal_billions") if fields.has("nominal_billions") else None,
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        num_heads=decoder.num_heads,
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
        ffn_size=decoder.ffn_size,
        windows=decoder.windows,
        max_position_embeddings=decoder.max_position_embeddings,
        tie_embeddings=decoder.tie_embeddings,
        qkv_bias=decoder.qkv_bias,
        output_bias=decoder.output_bias,
        mlp_bias=decoder.mlp_bias,
        norms=decoder.norm_parameters,
        sinks=False,
        experts=None,
        latent=None,
    )


def _norms(fields: HfFields, kind: str) -> int:
    hidden, per_head = fields.integer("hidden_size"), kind == "qwen3_moe"
    a_layer = 2 * hidden + (2 * fields.integer("head_dim", hidden // fields.integer("num_attention_heads")) if per_head else 0)
    if kind in _DEEPSEEK:
        latent = _latent(fields)
        a_layer += latent.query_rank + latent.kv_rank
    return fields.integer("num_hidden_layers") * a_layer + hidden


def _windows(fields: HfFields, kind: str) -> tuple[int | None, ...]:
    layers = fields.integer("num_hidden_layers")
    asked = fields.flag("use_sliding_window", False) if kind.startswith("qwen") else kind in ("mixtral", "gpt_oss")
    if not asked or not fields.has("sliding_window"):
        return (None,) * layers
    window, types = fields.integer("sliding_window"), fields.strings("layer_types")
    if types is None and kind == "gpt_oss":
        types = tuple("full_attention" if layer % 2 else "sliding_attention" for layer in range(layers))
    if types is None:  # Qwen gives the first layers the whole context
        first = fields.integer("max_window_layers", 1) if kind.startswith("qwen") else 0
        return tuple(window if layer >= first else None for layer in range(layers))
    if len(types) != layers:
        raise CheckpointError(f"{fields.where}: {len(types)} layer_types for {layers} layers", param="model")
    return tuple(window if each == "sliding_attention" else None for each in types)


def _experts(fields: HfFields, kind: str) -> Experts | None:
    names = {
        "mixtral": ("num_local_experts", "intermediate_size"),
        "gpt_oss": ("num_local_experts", "intermediate_size"),
        "qwen3_moe": ("num_experts", "moe_intermediate_size"),
        "deepseek_v2": ("n_routed_experts", "moe_intermediate_size"),
        "deepseek_v3": ("n_routed_experts", "moe_intermediate_size"),
    }
    if kind not in names:
        return None
    count, ffn_size = (fields.integer(name) for name in names[kind])
    active, layers = fields.integer("num_experts_per_tok"), fields.integer("num_hidden_layers")
    if active > count:
        raise CheckpointError(f"{fields.where}: {active} experts a token, but only {count} experts", param="model")
    shared = fields.integer("n_shared_experts") if kind in _DEEPSEEK and fields.has("n_shared_experts") else 0
    return Experts(
        count=count, active=active, ffn_size=ffn_size, shared_ffn_size=shared * ffn_size, layers=layers - _dense(fields, kind)
    )


def _dense(fields: HfFields, kind: str) -> int:
    """Layers of a mixture-of-experts model that have a dense MLP."""
    layers = fields.integer("num_hidden_layers")
    if kind in _DEEPSEEK:
        first = fields.integer("first_k_dense_replace") if fields.hf.get("first_k_dense_replace") else 0  # 0 is allowed
        every = fields.integer("moe_layer_freq", 1)
        return sum(layer < first or layer % every != 0 for layer in range(layers))
    if kind == "qwen3_moe":
        every, dense = fields.integer("decoder_sparse_step", 1), fields.token_ids("mlp_only_layers")
        return sum(layer in dense or (layer + 1) % every != 0 for layer in range(layers))
    return 0


def _latent(fields: HfFields) -> Latent:
    return Latent(
        query_rank=fields.integer("q_lora_rank") if fields.has("q_lora_rank") else 0,
        kv_rank=fields.integer("kv_lora_rank"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        nope_dim=fields.integer("qk_nope_head_dim"),
        value_dim=fields.integer("v_head_dim"),
    )
