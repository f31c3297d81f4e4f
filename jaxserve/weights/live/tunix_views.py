"""Trees of Tunix's models (`tunix.models`): einsum layouts, whose names and shapes are those of its own conversions.

Llama 3, Qwen 2 and Qwen 3 have one kind of tree, with or without experts; Gemma 3 another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig
from jaxserve.models.rules import WeightRule
from jaxserve.weights.live.trees import Arrays
from jaxserve.weights.live.views import At, Permute, Reshape, Step, View, Views

EMBEDDING = "embedder.input_embedding"
_TURNED: tuple[Step, ...] = (Permute((1, 0)),)
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
_PROJECTION = re.compile(r"self_attn\.([qkvo])_proj\.weight")
_NORMS = {
    "input_layernorm.weight": "input_layernorm.w",
    "post_attention_layernorm.weight": "post_attention_layernorm.w",
    "self_attn.q_norm.weight": "attn.q_norm.w",
    "self_attn.k_norm.weight": "attn.k_norm.w",
    "self_attn.q_proj.bias": "attn.q_bias",
    "self_attn.k_proj.bias": "attn.k_bias",
    "self_attn.v_proj.bias": "attn.v_bias",
}
_GEMMA_NORMS = {
    "input_layernorm.weight": "pre_attention_norm.scale",
    "post_attention_layernorm.weight": "post_attention_norm.scale",
    "pre_feedforward_layernorm.weight": "pre_ffw_norm.scale",
    "post_feedforward_layernorm.weight": "post_ffw_norm.scale",
    "self_attn.q_norm.weight": "attn._query_norm.scale",
    "self_attn.k_norm.weight": "attn._key_norm.scale",
}
_VECTORS = _NORMS, _GEMMA_NORMS


def is_tunix(arrays: Arrays) -> bool:
    return EMBEDDING in arrays


def tunix_views(config: DecoderConfig, rules: Iterable[WeightRule], arrays: Arrays) -> Views:
    """Raises CheckpointError for a model with tensors that no tree of Tunix's has."""
    gemma = any(name.endswith("_einsum.w") for name in arrays)
    fused = any(name.endswith("qkv_einsum.w") for name in arrays)
    views = {}
    for source in (source for rule in rules for source in rule.sources):
        view = _outside(source.name, source.stored_shape, gemma=gemma) or _in_layer(
            config, source.name, source.stored_shape, gemma=gemma, fused=fused
        )
        if view is None:
            raise CheckpointError(
                f"params: trees of Tunix have nothing for {source.name} of {config.architecture}; "
                "give a table of views as mapping",
                param="mapping",
            )
        views[source.name] = view
    return views


def _outside(name: str, shape: tuple[int, ...], *, gemma: bool) -> View | None:
    match name:
        case "model.embed_tokens.weight":
            return View(EMBEDDING, shape)
        case "model.norm.weight":
            return View("final_norm.scale" if gemma else "final_norm.w", shape)
        case "lm_head.weight":
            return View("lm_head.w", shape[::-1], _TURNED)
    return None


def _in_layer(config: DecoderConfig, name: str, shape: tuple[int, ...], *, gemma: bool, fused: bool) -> View | None:
    found = _LAYER.fullmatch(name)
    if found is None:
        return None
    layer, rest = f"layers.{found[1]}", found[2]
    vector = _VECTORS[gemma].get(rest)
    if vector is not None:
        return View(f"{layer}.{vector}", shape)
    if (expert := _EXPERT.fullmatch(rest)) is not None:
        assert config.experts is not None
        steps: tuple[Step, ...] = (At(0), *_TURNED)
        return View(f"{layer}.mlp.{expert[2]}_proj", (config.experts.count, *shape[::-1]), steps, (int(expert[1]),))
    if rest == "mlp.gate.weight":
        return View(f"{layer}.mlp.router.kernel", shape[::-1], _TURNED)
    if rest in ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"):
        return View(f"{layer}.{rest.removesuffix('.weight')}.kernel", shape[::-1], _TURNED)
    if (projection := _PROJECTION.fullmatch(rest)) is not None:
        return _projection(config, f"{layer}.attn", projection[1], shape, gemma=gemma, fused=fused)
    return None


def _projection(config: DecoderConfig, attention: str, which: str, shape: tuple[int, ...], *, gemma: bool, fused: bool) -> View:
    embed, dim = config.hidden_size, config.head_dim
    heads = config.num_heads if which in "qo" else config.num_kv_heads
    if which == "o":
        name = "attn_vec_einsum.w" if gemma else "o_proj.w"
        return View(f"{attention}.{name}", (heads, dim, embed), (Reshape((heads * dim, embed)), *_TURNED))
    if not gemma:
        return View(f"{attention}.{which}_proj.w", (embed, heads, dim), (Reshape((embed, heads * dim)), *_TURNED))
    together: tuple[Step, ...] = (Permute((0, 2, 1)), Reshape(shape))  # [heads, embed, dim]
    if fused:
        return View(f"{attention}.qkv_einsum.w", (3, heads, embed, dim), (At(0), *together), ("qkv".index(which),))
    if which == "q":
        return View(f"{attention}.q_einsum.w", (heads, embed, dim), together)
    return View(f"{attention}.kv_einsum.w", (2, heads, embed, dim), (At(0), *together), ("kv".index(which),))
