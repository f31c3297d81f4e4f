"""A DeepSeek-V3, or V3.2, and its module for multi-token prediction in plain numpy, float64.

Keys and values of all heads are made, and none are cached.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.plain_llama import Array, Weights, norm_scale, random_matrix, rms, wide

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 48,
    "torch_dtype": "float32",
}
INDEXER = {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "index_topk": 5, "index_n_heads": 16}
SPARSE: dict[str, Any] = {**CONFIG, **INDEXER, "index_head_dim": 12}
LATENT_EPS = {"rms_norm_eps": 1e-6}  # of the norms of latents, whatever the config says


def random_deepseek(rng: np.random.Generator, config: dict[str, Any], *, shares: bool = False) -> Weights:
    """Weights under Hugging Face's names, the module's as well; `shares`: it has no copies of embeddings and head."""
    embed, vocab, layers = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    weights = {"model.embed_tokens.weight": random_matrix(rng, vocab, embed), "model.norm.weight": norm_scale(rng, embed)}
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = random_matrix(rng, vocab, embed)
    for layer in range(layers + 1):
        weights |= _random_layer(rng, config, layer)
    module = f"model.layers.{layers}"
    weights |= {f"{module}.{name}.weight": norm_scale(rng, embed) for name in ("enorm", "hnorm", "shared_head.norm")}
    weights[f"{module}.eh_proj.weight"] = random_matrix(rng, embed, 2 * embed)
    if not shares:
        for name in ("embed_tokens", "shared_head.head"):
            weights[f"{module}.{name}.weight"] = random_matrix(rng, vocab, embed)
    return weights


def run_deepseek(weights: Weights, config: dict[str, Any], tokens: list[int]) -> tuple[Array, Array]:
    """What the final norm makes [T, E], and logits [T, V]."""
    x = wide(weights["model.embed_tokens.weight"])[tokens]
    for layer in range(config["num_hidden_layers"]):
        x = _after(weights, config, layer, x)
    hidden = rms(x, weights["model.norm.weight"], config)
    table = weights["model.embed_tokens.weight"] if config["tie_word_embeddings"] else weights["lm_head.weight"]
    return hidden, hidden @ wide(table).T


def run_module(weights: Weights, config: dict[str, Any], hidden: Array, follows: list[int]) -> tuple[Array, Array]:
    """What the module goes on from [T, E], and logits [T, V], of hidden states [T, E] and the tokens after them."""
    layer = config["num_hidden_layers"]
    prefix = f"model.layers.{layer}"
    table = weights.get(f"{prefix}.embed_tokens.weight", weights["model.embed_tokens.weight"])
    shared = weights["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    embedded = rms(wide(table)[follows], weights[f"{prefix}.enorm.weight"], config)
    before = rms(hidden, weights[f"{prefix}.hnorm.weight"], config)
    x = np.concatenate([embedded, before], axis=1) @ wide(weights[f"{prefix}.eh_proj.weight"]).T
    x = _after(weights, config, layer, x)
    head = weights.get(f"{prefix}.shared_head.head.weight", shared)
    return x, rms(x, weights[f"{prefix}.shared_head.norm.weight"], config) @ wide(head).T


def guess_tokens(weights: Weights, config: dict[str, Any], hidden: Array, tokens: list[int], count: int) -> list[int]:
    """Greedy guesses of the module behind `tokens`, of the target's hidden states [T-1, E] of all but the last of them."""
    follows, guesses = list(tokens[1:]), []
    for _ in range(count):
        x, logits = run_module(weights, config, hidden, follows)
        guesses.append(int(logits[-1].argmax()))
        hidden, follows = np.concatenate([hidden, x[-1:]]), [*follows, guesses[-1]]
    return guesses


def _random_layer(rng: np.random.Generator, config: dict[str, Any], layer: int) -> Weights:
    embed, heads, prefix = config["hidden_size"], config["num_attention_heads"], f"model.layers.{layer}"
    query, kv, rope = config["q_lora_rank"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    shapes = {
        "self_attn.q_a_proj": (query, embed),
        "self_attn.q_b_proj": (heads * (nope + rope), query),
        "self_attn.kv_a_proj_with_mqa": (kv + rope, embed),
        "self_attn.kv_b_proj": (heads * (nope + value), kv),
        "self_attn.o_proj": (embed, heads * value),
    }
    mlps = {"mlp": config["intermediate_size"]}
    if _sparse(config, layer):
        count, ffn = config["n_routed_experts"], config["moe_intermediate_size"]
        shapes["mlp.gate"] = (count, embed)
        mlps = {f"mlp.experts.{expert}": ffn for expert in range(count)}
        mlps["mlp.shared_experts"] = ffn * config["n_shared_experts"]
    for name, ffn in mlps.items():
        shapes |= {f"{name}.gate_proj": (ffn, embed), f"{name}.up_proj": (ffn, embed), f"{name}.down_proj": (embed, ffn)}
    norms = {"input_layernorm": embed, "post_attention_layernorm": embed}
    norms |= {"self_attn.q_a_layernorm": query, "self_attn.kv_a_layernorm": kv}
    indexer = f"{prefix}.self_attn.indexer"
    if "index_topk" in config:
        count, size = config["index_n_heads"], config["index_head_dim"]
        shapes |= {f"self_attn.indexer.{name}": (rows, embed) for name, rows in (("wk", size), ("weights_proj", count))}
        shapes["self_attn.indexer.wq_b"] = (count * size, query)
        norms["self_attn.indexer.k_norm"] = size
    weights = {f"{prefix}.{name}.weight": random_matrix(rng, *shape) for name, shape in shapes.items()}
    weights |= {f"{prefix}.{name}.weight": norm_scale(rng, size) for name, size in norms.items()}
    if "index_topk" in config:
        weights[f"{indexer}.k_norm.bias"] = rng.normal(0, 0.3, size).astype(np.float32)
    if _sparse(config, layer):
        correction = rng.uniform(0, 0.2, config["n_routed_experts"]).astype(np.float32)
        weights[f"{prefix}.mlp.gate.e_score_correction_bias"] = correction
    return weights


def _after(weights: Weights, config: dict[str, Any], layer: int, x: Array) -> Array:
    """The residual stream x [T, E] after a layer."""
    prefix = f"model.layers.{layer}"
    x = x + _attention(weights, config, f"{prefix}.self_attn", rms(x, weights[f"{prefix}.input_layernorm.weight"], config))
    normed = rms(x, weights[f"{prefix}.post_attention_layernorm.weight"], config)
    if not _sparse(config, layer):
        return x + _mlp(weights, f"{prefix}.mlp", normed)
    routed = np.stack([_experts(weights, config, f"{prefix}.mlp", row) for row in normed])
    return x + routed + _mlp(weights, f"{prefix}.mlp.shared_experts", normed)


def _sparse(config: dict[str, Any], layer: int) -> bool:
    sparse: bool = layer >= config["first_k_dense_replace"]
    return sparse


def _attention(weights: Weights, config: dict[str, Any], block: str, x: Array) -> Array:
    count, heads = len(x), config["num_attention_heads"]
    nope, rank = config["qk_nope_head_dim"], config["kv_lora_rank"]

    def times(name: str, rows: Array) -> Array:
        return rows @ wide(weights[f"{block}.{name}.weight"]).T

    def normed(name: str, rows: Array) -> Array:
        return rms(rows, weights[f"{block}.{name}.weight"], LATENT_EPS)

    q = times("q_b_proj", normed("q_a_layernorm", times("q_a_proj", x))).reshape(count, heads, -1)
    latent, shared = np.split(times("kv_a_proj_with_mqa", x), [rank], axis=1)
    k, v = np.split(times("kv_b_proj", normed("kv_a_layernorm", latent)).reshape(count, heads, -1), [nope], axis=2)
    q = np.concatenate([q[..., :nope], _rotated(q[..., nope:], config)], axis=2)
    k = np.concatenate([k, np.repeat(_rotated(shared[:, None], config), heads, axis=1)], axis=2)
    out = np.zeros((count, heads, config["v_head_dim"]))
    for place, seen in enumerate(_seen(weights, config, block, x)):
        for head in range(heads):
            scores = k[seen, head] @ q[place, head] / np.sqrt(q.shape[2])
            shares = np.exp(scores - scores.max())
            out[place, head] = shares / shares.sum() @ v[seen, head]
    return times("o_proj", out.reshape(count, -1))


def _seen(weights: Weights, config: dict[str, Any], block: str, x: Array) -> list[npt.NDArray[np.int64]]:
    """The places that each of the tokens x[T, E] attends to."""
    if "index_topk" not in config:
        return [np.arange(place + 1) for place in range(len(x))]
    count, size, rope = config["index_n_heads"], config["index_head_dim"], config["qk_rope_head_dim"]
    halves = np.concatenate([np.arange(rope).reshape(2, -1).T.reshape(-1), np.arange(rope, size)])  # pairs side by side

    def times(name: str, rows: Array) -> Array:
        return rows @ wide(weights[f"{block}.{name}.weight"]).T

    def turned(rows: Array) -> Array:
        pairs = rows[..., halves]
        return np.concatenate([_rotated(pairs[..., :rope], config), pairs[..., rope:]], axis=2)

    latent = rms(times("q_a_proj", x), weights[f"{block}.q_a_layernorm.weight"], LATENT_EPS)
    q = turned(times("indexer.wq_b", latent).reshape(len(x), count, size))
    keys = times("indexer.wk", x)
    keys = (keys - keys.mean(axis=1, keepdims=True)) / np.sqrt(keys.var(axis=1, keepdims=True) + 1e-6)
    keys = keys * wide(weights[f"{block}.indexer.k_norm.weight"]) + wide(weights[f"{block}.indexer.k_norm.bias"])
    products = np.maximum(np.einsum("tin,un->tiu", q, turned(keys[:, None])[:, 0]), 0)
    scores = np.einsum("ti,tiu->tu", times("indexer.weights_proj", x), products)
    return [np.argsort(-each[: place + 1], kind="stable")[: config["index_topk"]] for place, each in enumerate(scores)]


def _rotated(x: Array, config: dict[str, Any]) -> Array:
    """x [T, heads, rope] with each pair of neighbours rotated."""
    size = x.shape[2]
    angles = np.arange(len(x))[:, None] * config["rope_theta"] ** (-np.arange(0, size, 2) / size)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)[:, None]
    return np.stack([turned.real, turned.imag], axis=3).reshape(x.shape)


def _mlp(weights: Weights, block: str, x: Array) -> Array:
    gate, up = (x @ wide(weights[f"{block}.{name}_proj.weight"]).T for name in ("gate", "up"))
    down: Array = gate / (1 + np.exp(-gate)) * up @ wide(weights[f"{block}.down_proj.weight"]).T
    return down


def _experts(weights: Weights, config: dict[str, Any], block: str, row: Array) -> Array:
    """What the experts that a token chooses make of it [E]: of the best groups, by their two best experts' scores."""
    scores = 1 / (1 + np.exp(-(wide(weights[f"{block}.gate.weight"]) @ row)))
    choice = scores + wide(weights[f"{block}.gate.e_score_correction_bias"])
    by_group = np.sort(choice.reshape(config["n_group"], -1), axis=1)
    best = np.argsort(-by_group[:, -2:].sum(axis=1))[: config["topk_group"]]
    size = by_group.shape[1]
    allowed = [expert for group in best for expert in range(group * size, (group + 1) * size)]
    chosen = sorted(allowed, key=lambda expert: -choice[expert])[: config["num_experts_per_tok"]]
    shares: npt.NDArray[np.float64] = scores[chosen] / scores[chosen].sum() * config["routed_scaling_factor"]
    return sum(
        (share * _mlp(weights, f"{block}.experts.{expert}", row) for share, expert in zip(shares, chosen, strict=True)),
        np.zeros(len(row)),
    )
