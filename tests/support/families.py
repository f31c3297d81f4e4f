"""Seeded random models of every family with eight query heads, for up to eight devices."""

import json
from pathlib import Path
from typing import Any

VOCAB = 301  # no multiple of any number of devices
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 8, "attention_bias": True, "mlp_bias": True},
    "mistral": {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 2, "sliding_window": 6},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 8, "tie_word_embeddings": True},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 2, "attention_bias": True},
}
_LATENT = {"num_key_value_heads": 8, "kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 14}
FAMILIES["deepseek_v3"] = {**_LATENT, "architectures": ["DeepseekV3ForCausalLM"], "q_lora_rank": 12, "first_k_dense_replace": 2}
SPARSE: dict[str, dict[str, Any]] = {  # with experts, of which the last layer of Qwen has none
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "num_key_value_heads": 8,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 24,
        "mlp_only_layers": [1],
    },
    "deepseek_v2": {
        **_LATENT,
        "architectures": ["DeepseekV2ForCausalLM"],
        "q_lora_rank": None,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 1,
        "moe_intermediate_size": 40,
    },
    "deepseek_v32": {
        **_LATENT,
        "architectures": ["DeepseekV32ForCausalLM"],
        "q_lora_rank": 12,
        "index_n_heads": 16,
        "index_head_dim": 12,
        "index_topk": 6,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 1,
        "moe_intermediate_size": 40,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
    },
}


def hf_config(family: str) -> dict[str, Any]:
    """The config.json of a family's model."""
    return {**COMMON, **(FAMILIES | SPARSE)[family]}


def write_config(directory: Path, family: str) -> Path:
    """A checkpoint directory without weights and tokenizer; returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(hf_config(family)))
    return directory
