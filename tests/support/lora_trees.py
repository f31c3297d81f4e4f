"""One adapter as PEFT has its tensors, and as trainers do; what trainers have is written down array by array."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxserve.models.config import DecoderConfig
from jaxserve.weights.checkpoint import Block

RANK = 3
CONFIG: dict[str, Any] = {"r": RANK, "lora_alpha": 6}
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")


def peft_tensors(config: DecoderConfig, seed: int, rank: int = RANK, *, shared: tuple[str, ...] = ()) -> dict[str, Block]:
    """A and B of every projection of attention and the MLPs; those of `shared` have one A."""
    rng, tensors = np.random.default_rng(seed), {}
    hidden, dim = config.hidden_size, config.head_dim
    heads, kv = config.num_heads * dim, config.num_kv_heads * dim
    sizes = dict(zip(ATTENTION, [(hidden, heads), (hidden, kv), (hidden, kv), (heads, hidden)], strict=True))
    sizes |= dict(zip(MLP, [(hidden, config.ffn_size)] * 2 + [(config.ffn_size, hidden)], strict=True))
    for layer in range(config.num_layers):
        one = rng.standard_normal((rank, hidden))
        for module, (inputs, outputs) in sizes.items():
            name = f"model.layers.{layer}.{'self_attn' if module in ATTENTION else 'mlp'}.{module}"
            a = one if module in shared else rng.standard_normal((rank, inputs))
            tensors[f"{name}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = (rng.standard_normal((outputs, rank)) / 4).astype(np.float32)
    return tensors


def tunix_tree(config: DecoderConfig, tensors: dict[str, Block]) -> dict[str, Block]:
    """As qwix makes them beside Tunix's Llama and Qwen: names and shapes are what it made of them."""
    tree: dict[str, Block] = {}
    for layer, module, a, b in _pairs(config, tensors):
        rank = len(a)
        if module in MLP:
            tree |= _beside(f"layers.{layer}.mlp.{module}.kernel", a.T, b.T)
        elif module == "o_proj":
            tree |= _beside(f"layers.{layer}.attn.o_proj.w", a.T.reshape(config.num_heads, config.head_dim, rank), b.T)
        else:
            tree |= _beside(f"layers.{layer}.attn.{module}.w", a.T, b.T.reshape(rank, -1, config.head_dim))
    return tree


def gemma_tree(config: DecoderConfig, tensors: dict[str, Block], *, fused: bool) -> dict[str, Block]:
    """The same of Tunix's Gemma: the projections of an einsum share A, and their Bs are one array."""
    tree: dict[str, Block] = {}
    by_layer: dict[int, dict[str, tuple[Block, Block]]] = {}
    for layer, module, a, b in _pairs(config, tensors):
        by_layer.setdefault(layer, {})[module] = a, b
    for layer, pairs in by_layer.items():
        for module in MLP:
            tree |= _beside(f"layers.{layer}.mlp.{module}.kernel", pairs[module][0].T, pairs[module][1].T)
        heads = {one: pairs[one][1].T.reshape(len(pairs[one][0]), -1, config.head_dim) for one in ATTENTION[:3]}
        a, b = pairs["o_proj"]
        out = a.T.reshape(config.num_heads, config.head_dim, len(a))
        tree |= _beside(f"layers.{layer}.attn.attn_vec_einsum.w", out, b.T)
        if fused:
            together = np.stack([heads[one] for one in ATTENTION[:3]], axis=1)
            tree |= _beside(f"layers.{layer}.attn.qkv_einsum.w", pairs["q_proj"][0].T, together)
        else:
            tree |= _beside(f"layers.{layer}.attn.q_einsum.w", pairs["q_proj"][0].T, heads["q_proj"])
            together = np.stack([heads["k_proj"], heads["v_proj"]], axis=1)
            tree |= _beside(f"layers.{layer}.attn.kv_einsum.w", pairs["k_proj"][0].T, together)
    return tree


def maxtext_tree(config: DecoderConfig, tensors: dict[str, Block], *, stacked: bool, turned: bool) -> dict[str, Any]:
    """As MaxText's `lora_utils` has them, attention alone: queries divided by the square root of a head's size, heads of
    neighbours where the rotary embedding turns these.
    """
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out"}
    layers: dict[int, dict[str, dict[str, Block]]] = {}
    for layer, module, a, b in _pairs(config, tensors):
        if module in names:
            rank = len(a)
            if module == "o_proj":
                pair = a.T.reshape(config.num_heads, config.head_dim, rank), b.T
            else:
                pair = a.T, _heads(config, b.T.reshape(rank, -1, config.head_dim), module, turned=turned)
            layers.setdefault(layer, {})[names[module]] = {"lora_a.kernel": pair[0], "lora_b.kernel": pair[1]}
    if not stacked:
        return {"params": {"decoder": {f"layers_{layer}": {"self_attention": one} for layer, one in layers.items()}}}
    together = {
        module: {leaf: np.stack([layers[layer][module][leaf] for layer in sorted(layers)], axis=1) for leaf in layers[0][module]}
        for module in names.values()
    }
    return {"params": {"decoder": {"layers": {"self_attention": together}}}}


def _heads(config: DecoderConfig, b: Block, module: str, *, turned: bool) -> Block:
    if turned and module in ("q_proj", "k_proj"):
        half = config.head_dim // 2
        b = np.stack([b[..., :half], b[..., half:]], axis=-1).reshape(b.shape)
    return b / np.float32(config.head_dim**0.5) if module == "q_proj" else b


def _beside(kernel: str, a: Block, b: Block) -> dict[str, Block]:
    return {f"{kernel}_lora_a": a, f"{kernel}_lora_b": b}


def _pairs(config: DecoderConfig, tensors: dict[str, Block]) -> Any:
    for layer in range(config.num_layers):
        for module in (*ATTENTION, *MLP):
            name = f"model.layers.{layer}.{'self_attn' if module in ATTENTION else 'mlp'}.{module}"
            if f"{name}.lora_A.weight" in tensors:
                yield layer, module, tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"]
