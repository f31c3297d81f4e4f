"""What the Llama-like families share: the fields of config.json that mean the same in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig, Experts
from jaxserve.models.fields import HfFields
from jaxserve.models.positions import RopeConfig
from jaxserve.models.quantization import quantization_from_hf
from jaxserve.models.rope_config import longest_context, rope_from_hf

DTYPES = ("float32", "bfloat16", "float16")


def common_config(
    hf: Mapping[str, Any],
    *,
    model_type: str,
    qkv_bias: bool,
    output_bias: bool,
    windows: tuple[int | None, ...],
    max_position_embeddings: int,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    mlp_bias: bool = False,
    tie_embeddings: bool = False,
    reads: frozenset[str] = frozenset(),
    ropes: tuple[RopeConfig | None, ...] | None = None,
    **choices: Any,
) -> DecoderConfig:
    """A DecoderConfig from the fields all families share plus what the family decides.

    Args:
        hf: the parsed config.json.
        model_type: the family's `model_type`.
        qkv_bias: as in DecoderConfig.
        output_bias: as in DecoderConfig.
        windows: as in DecoderConfig.
        max_position_embeddings: the family's default.
        num_kv_heads: the family's default; the number of heads if None.
        head_dim: the family's default; hidden_size / num_attention_heads if None.
        mlp_bias: as in DecoderConfig.
        tie_embeddings: the family's default.
        reads: fields that most families do not have, and that this one has read itself.
        ropes: as in DecoderConfig; by default the one that config.json describes, in every layer.
        choices: fields of DecoderConfig whose defaults are not the family's.

    Raises:
        UnsupportedModelError: a value that jaxserve does not implement.
        CheckpointError: a field that is missing or impossible.
    """
    fields = HfFields(hf)
    fields.refuse_unimplemented(reads)
    quantization_from_hf(hf)  # for what it refuses; weights are read by it
    if hf.get("model_type", model_type) != model_type:
        raise fields.unsupported("model_type", f"this architecture goes with {model_type!r}")
    dtype = hf.get("dtype") or hf.get("torch_dtype") or "float32"
    if dtype not in DTYPES:
        raise fields.unsupported("dtype" if hf.get("dtype") else "torch_dtype", f"supported are {', '.join(DTYPES)}")
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    kv_heads = fields.integer("num_key_value_heads", num_kv_heads or heads)
    if heads % kv_heads:
        raise CheckpointError(f"config.json: num_attention_heads={heads} is no multiple of {kv_heads} kv heads")
    width = fields.integer("head_dim", head_dim or max(hidden // heads, 1))
    if width % 2:
        raise CheckpointError(f"config.json: head_dim must be even for rotary embedding, got {width}")
    require_experts(choices.get("experts"))
    limit = fields.integer("max_position_embeddings", max_position_embeddings)
    layers = fields.integer("num_hidden_layers")
    ropes = (rope_from_hf(hf, limit),) * layers if ropes is None else ropes
    return DecoderConfig(
        architecture=hf["architectures"][0],
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=width,
        ffn_size=fields.integer("intermediate_size"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        ropes=ropes,
        tie_embeddings=fields.flag("tie_word_embeddings", tie_embeddings),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        windows=windows,
        max_position_embeddings=longest_context(limit, ropes),
        dtype=dtype,
        eos_token_ids=fields.token_ids("eos_token_id"),
        **{"qk_norm": None, "activation": "silu", **choices},
    )


def require_experts(experts: Experts | None) -> None:
    """Raise CheckpointError for experts that no token could choose as config.json says."""
    if experts is None:
        return
    routing, count, active = experts.routing, experts.count, experts.active
    if count % routing.groups:
        raise CheckpointError(f"config.json: n_group={routing.groups} does not divide {count} experts")
    if routing.active_groups > routing.groups:
        raise CheckpointError(f"config.json: topk_group={routing.active_groups} is more than n_group={routing.groups}")
    size = count // routing.groups
    if routing.group_score == "top2" and size < 2:
        raise CheckpointError(f"config.json: n_group={routing.groups} leaves one expert of {count} in a group, which needs two")
    if active > routing.active_groups * size:
        raise CheckpointError(
            f"config.json: num_experts_per_tok={active} is more than the {routing.active_groups * size} experts to choose from"
        )


def uniform_windows(fields: HfFields, window: int | None) -> tuple[int | None, ...]:
    """The same window in every layer.

    Raises UnsupportedModelError: `layer_types` says that layers differ from that, or there is a `sliding_window` for none.
    """
    if window is None and fields.has("sliding_window"):
        raise fields.unsupported("sliding_window", "layers of this architecture see every position")
    kind = "full_attention" if window is None else "sliding_attention"
    if any(layer != kind for layer in fields.strings("layer_types") or ()):
        raise fields.unsupported("layer_types", f"every layer of this architecture is {kind}")
    return (window,) * fields.integer("num_hidden_layers")


def uses_window(fields: HfFields) -> bool:
    """Whether `use_sliding_window` has an effect: beside a `sliding_window` that is null it has none."""
    return fields.flag("use_sliding_window", False) and fields.hf.get("sliding_window", 0) is not None


def layered_windows(fields: HfFields) -> tuple[int | None, ...]:
    """Windows of the Qwen families: only with `use_sliding_window`, and only in the layers that `layer_types` or
    `max_window_layers` names.

    Raises:
        UnsupportedModelError: a layer type other than full or sliding attention.
        CheckpointError: a list of another length, or a sliding layer without a window.
    """
    slides = uses_window(fields)
    first = fields.count("max_window_layers", 28)
    sliding = sliding_layers(fields, lambda layer: slides and layer >= first)
    if not any(sliding):
        return (None,) * len(sliding)
    if not slides:
        raise CheckpointError("config.json: layer_types has sliding_attention, but use_sliding_window is false")
    return windows_of(sliding, fields.integer("sliding_window", 4096))


def sliding_layers(fields: HfFields, default: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers have a window: as `layer_types` says, by default as the family does.

    Raises:
        UnsupportedModelError: a layer type other than full or sliding attention.
        CheckpointError: a list of another length.
    """
    layers = fields.integer("num_hidden_layers")
    kinds = fields.strings("layer_types")
    if kinds is None:
        return tuple(map(default, range(layers)))
    if len(kinds) != layers:
        raise CheckpointError(f"config.json: layer_types has {len(kinds)} entries for {layers} layers")
    if not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise fields.unsupported("layer_types", "supported are full_attention and sliding_attention")
    return tuple(kind == "sliding_attention" for kind in kinds)


def recurrent_layers(
    fields: HfFields, kinds: tuple[str, ...], *, recurrent: tuple[str, ...], attending: tuple[str, ...]
) -> tuple[bool, ...]:
    """Which layers keep a state in the place of attention, of layers of these `kinds`, whose names are among the other two.

    Raises:
        UnsupportedModelError: another kind.
        CheckpointError: a list of another length, or no layer with attention.
    """
    layers = fields.integer("num_hidden_layers")
    if len(kinds) != layers:
        raise CheckpointError(f"config.json: layer_types has {len(kinds)} entries for {layers} layers")
    if not set(kinds) <= {*recurrent, *attending}:
        raise fields.unsupported("layer_types", f"supported are {', '.join((*recurrent, *attending))}")
    if not set(kinds) & set(attending):
        raise CheckpointError(f"config.json: layer_types has no {attending[0]}, of which there must be one layer or more")
    return tuple(kind in recurrent for kind in kinds)


def layer_ropes(fields: HfFields, rope: RopeConfig) -> tuple[RopeConfig | None, ...]:
    """That one in every layer for which `no_rope_layers` has a 1, by default in all but every `no_rope_layer_interval`-th.

    Raises CheckpointError: a list of another length, or of other numbers.
    """
    layers, every = fields.integer("num_hidden_layers"), fields.integer("no_rope_layer_interval", 4)
    rotates = fields.hf.get("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(layers)]
    if len(rotates) != layers or not set(rotates) <= {0, 1}:
        raise CheckpointError(f"config.json: no_rope_layers must hold a 0 or 1 for each of {layers} layers, got {rotates!r:.80}")
    return tuple(rope if each else None for each in rotates)


def windows_of(sliding: Iterable[bool], window: int) -> tuple[int | None, ...]:
    return tuple(window if each else None for each in sliding)
