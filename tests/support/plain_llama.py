"""A Llama and an EAGLE-3 head in plain numpy, float64: one token after another, no cache of pages, no batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = dict[str, npt.NDArray[np.float32]]


def random_llama(rng: np.random.Generator, config: dict[str, Any]) -> Weights:
    """Weights under Hugging Face's names, as large as to make tokens differ."""
    embed, vocab = config["hidden_size"], config["vocab_size"]
    weights = {"model.embed_tokens.weight": random_matrix(rng, vocab, embed), "model.norm.weight": norm_scale(rng, embed)}
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = random_matrix(rng, vocab, embed)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        weights |= _layer(rng, config, prefix, embed)
        weights[f"{prefix}.input_layernorm.weight"] = norm_scale(rng, embed)
    return weights


def random_head(rng: np.random.Generator, config: dict[str, Any], taps: int, count: int, layer: str = "midlayer") -> Weights:
    """Weights of a head that sees `taps` of the target's layers and guesses `count` of its tokens."""
    embed = config["hidden_size"]
    return {
        **_layer(rng, config, layer, 2 * embed),
        f"{layer}.input_layernorm.weight": norm_scale(rng, embed),
        f"{layer}.hidden_norm.weight": norm_scale(rng, embed),
        "norm.weight": norm_scale(rng, embed),
        "fc.weight": random_matrix(rng, embed, taps * embed),
        "lm_head.weight": random_matrix(rng, count, embed),
        "embed_tokens.weight": random_matrix(rng, config["vocab_size"], embed),
    }


def run_llama(weights: Weights, config: dict[str, Any], tokens: list[int]) -> tuple[list[Array], Array]:
    """What goes into each layer, [T, E], and logits [T, V]."""
    x = wide(weights["model.embed_tokens.weight"])[tokens]
    inputs = []
    for layer in range(config["num_hidden_layers"]):
        inputs.append(x)
        prefix = f"model.layers.{layer}"
        normed = rms(x, weights[f"{prefix}.input_layernorm.weight"], config)
        x = _after(weights, config, prefix, x, normed)
    hidden = rms(x, weights["model.norm.weight"], config)
    table = weights["model.embed_tokens.weight"] if config["tie_word_embeddings"] else weights["lm_head.weight"]
    return inputs, hidden @ wide(table).T


def guess_tokens(
    head: Weights,
    config: dict[str, Any],
    tapped: Array,
    tokens: list[int],
    count: int,
    targets: npt.NDArray[np.int64],
    layer: str = "midlayer",
    *,
    norm_first: bool = False,
) -> list[int]:
    """Greedy guesses behind `tokens`, of hidden states tapped [T-1, E * taps] of all but the last of them."""
    hidden = tapped @ wide(head["fc.weight"]).T
    follows, guesses = list(tokens[1:]), []
    for _ in range(count):
        embedded = rms(wide(head["embed_tokens.weight"])[follows], head[f"{layer}.input_layernorm.weight"], config)
        normed = rms(hidden, head[f"{layer}.hidden_norm.weight"], config)
        first = normed if norm_first else hidden
        x = _after(head, config, layer, first, np.concatenate([embedded, normed], axis=1))
        logits = rms(x, head["norm.weight"], config)[-1] @ wide(head["lm_head.weight"]).T
        guesses.append(int(targets[logits.argmax()]))
        hidden, follows = np.concatenate([hidden, x[-1:]]), [*follows, guesses[-1]]
    return guesses


def _layer(rng: np.random.Generator, config: dict[str, Any], prefix: str, inputs: int) -> Weights:
    embed, ffn, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes = {
        "self_attn.q_proj": (heads, inputs),
        "self_attn.k_proj": (kv_heads, inputs),
        "self_attn.v_proj": (kv_heads, inputs),
        "self_attn.o_proj": (embed, heads),
        "mlp.gate_proj": (ffn, embed),
        "mlp.up_proj": (ffn, embed),
        "mlp.down_proj": (embed, ffn),
    }
    weights = {f"{prefix}.{name}.weight": random_matrix(rng, *shape) for name, shape in shapes.items()}
    return weights | {f"{prefix}.post_attention_layernorm.weight": norm_scale(rng, embed)}


def _after(weights: Weights, config: dict[str, Any], prefix: str, x: Array, normed: Array) -> Array:
    """The residual stream x [T, E] after attention over `normed` and the MLP."""

    def times(name: str, rows: Array) -> Array:
        return rows @ wide(weights[f"{prefix}.{name}.weight"]).T

    size, group = config["head_dim"], config["num_attention_heads"] // config["num_key_value_heads"]
    count = len(x)
    q, k, v = (times(f"self_attn.{name}_proj", normed).reshape(count, -1, size) for name in "qkv")
    q, k = _rotated(q, config), _rotated(k, config)
    out = np.zeros((count, config["num_attention_heads"], size))
    for head in range(config["num_attention_heads"]):
        for place in range(count):
            scores = k[: place + 1, head // group] @ q[place, head] / np.sqrt(size)
            shares = np.exp(scores - scores.max())
            out[place, head] = shares / shares.sum() @ v[: place + 1, head // group]
    x = x + times("self_attn.o_proj", out.reshape(count, -1))
    normed = rms(x, weights[f"{prefix}.post_attention_layernorm.weight"], config)
    gate = times("mlp.gate_proj", normed)
    return x + times("mlp.down_proj", gate / (1 + np.exp(-gate)) * times("mlp.up_proj", normed))


def _rotated(x: Array, config: dict[str, Any]) -> Array:
    size = config["head_dim"]
    frequencies = config["rope_theta"] ** (-np.arange(0, size, 2) / size)
    angles = np.arange(len(x))[:, None] * frequencies
    cos, sin = (np.concatenate([f(angles)] * 2, axis=1)[:, None] for f in (np.cos, np.sin))
    low, high = np.split(x, 2, axis=2)
    rotated: Array = x * cos + np.concatenate([-high, low], axis=2) * sin
    return rotated


def rms(x: Array, scale: npt.NDArray[np.float32], config: dict[str, Any]) -> Array:
    normed: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config["rms_norm_eps"]) * wide(scale)
    return normed


def random_matrix(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    values: npt.NDArray[np.float32] = (rng.standard_normal(shape) / np.sqrt(shape[1]) * 1.5).astype(np.float32)
    return values


def norm_scale(rng: np.random.Generator, size: int) -> npt.NDArray[np.float32]:
    return rng.uniform(0.5, 1.5, size).astype(np.float32)


def wide(array: npt.NDArray[np.float32]) -> Array:
    return array.astype(np.float64)
