"""The benchmark's hybrid model: Qwen3.5's layers in the sizes of the Llama of 150M, three of four with a gated delta net."""

from __future__ import annotations

from typing import Any

from benchmarks import llama150m

SHARED = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "rms_norm_eps", "tie_word_embeddings", "bos_token_id", "eos_token_id", "dtype"),
)
LONGEST = 32768

CONFIG: dict[str, Any] = {
    **{name: llama150m.CONFIG[name] for name in SHARED},
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_act": "silu",
    "max_position_embeddings": LONGEST,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
}
DENSE: dict[str, Any] = {**llama150m.CONFIG, "max_position_embeddings": LONGEST}
