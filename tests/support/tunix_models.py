"""Tiny models that Tunix has, too: its module, config.json, and the fields of its own configuration."""

from __future__ import annotations

from typing import Any

SEED = 11
_COMMON: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
    "intermediate_size": 12,
}
_FIELDS: dict[str, Any] = {
    "num_layers": 2,
    "vocab_size": 24,
    "embed_dim": 8,
    "hidden_dim": 12,
    "num_heads": 4,
    "head_dim": 4,
    "num_kv_heads": 2,
    "rope_theta": 10_000,
    "norm_eps": 1e-6,
}
_GEMMA: dict[str, Any] = {
    **_COMMON,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "query_pre_attn_scalar": 4,
    "sliding_window": 8,
    "hidden_activation": "gelu_pytorch_tanh",
}
_GEMMA_FIELDS = {name: value for name, value in _FIELDS.items() if name not in ("vocab_size", "rope_theta", "norm_eps")}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama3": ("llama3", {**_COMMON, "architectures": ["LlamaForCausalLM"]}, _FIELDS),
    "qwen2": ("qwen2", {**_COMMON, "architectures": ["Qwen2ForCausalLM"]}, _FIELDS),
    "qwen3": ("qwen3", {**_COMMON, "architectures": ["Qwen3ForCausalLM"]}, _FIELDS),
    "qwen3 tied": (
        "qwen3",
        {**_COMMON, "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
        {**_FIELDS, "use_tied_embedding": True},
    ),
    "qwen3 experts": (
        "qwen3",
        {
            **_COMMON,
            "architectures": ["Qwen3MoeForCausalLM"],
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 12,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        {**_FIELDS, "num_experts": 3, "num_experts_per_tok": 2},
    ),
    "gemma3": ("gemma3", _GEMMA, {**_GEMMA_FIELDS, "num_embed": 24, "sliding_window_size": 8}),
    "gemma3 fused": (
        "gemma3",
        {**_GEMMA, "num_key_value_heads": 4},
        {**_GEMMA_FIELDS, "num_embed": 24, "num_kv_heads": 4, "sliding_window_size": 8},
    ),
}
