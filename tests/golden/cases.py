"""The golden checkpoints: one tiny random model for every choice that a family makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Case:
    """One checkpoint.

    Attributes:
        name: its directory.
        model_type: Hugging Face's name of the family.
        seed: of weights and prompts.
        config: arguments of the family's config class, beyond BASE.
        layout: transformers' major version in whose layout config.json is written.
        stored: how the weights are quantized; in capitals, a preset of compressed-tensors.
        dtype: of the stored weights that are not quantized; goldens are computed in float32 from them in any case.
        shard_size: largest safetensors file; smaller than the model for a sharded index.
        within: of a model that sees, whose decoder this is: what its config class takes besides.
        shortest: of its prompts; what is shorter, transformers computes otherwise than within a longer text.
    """

    name: str
    model_type: str
    seed: int
    config: dict[str, Any] = field(default_factory=dict)
    layout: int = 5
    stored: Literal["plain", "fp8", "mxfp4", "W4A16", "W8A8", "FP8_DYNAMIC"] = "plain"
    dtype: str = "float32"
    shard_size: str = "1GB"
    within: dict[str, Any] | None = None
    shortest: int = 1


BASE: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

LFM2: dict[str, Any] = {"norm_eps": 1e-5, "tie_word_embeddings": True}
# Its steps: transformers bounds those of a prompt by `time_step_min`, and those that come after it not at all.
NEMOTRON_H: dict[str, Any] = {
    "hidden_size": 48,
    "head_dim": 12,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 4,
    "ssm_state_size": 16,
    "chunk_size": 16,
    "time_step_min": 1e-12,
}
LLAMA4: dict[str, Any] = {
    "head_dim": 16,
    "attention_chunk_size": 16,
    "floor_scale": 20,
    "attn_scale": 0.3,
    "num_local_experts": 4,
    "intermediate_size_mlp": 48,
}
LLAMA4_EYES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vision_output_dim": 16,
    "projector_input_dim": 16,
    "projector_output_dim": 16,
    "image_size": 8,
    "patch_size": 4,
}
NEMOTRON_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 40,
}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 20.0}
# Phi-3 at 256 positions: its frequencies for short and for long contexts, and heads of 16 of which 12 dimensions rotate.
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.8],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0],
}
PARTLY: dict[str, Any] = {"hidden_size": 64, "max_position_embeddings": 256}
FACTORS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 0.5,
    "attention_bias": True,
    "mlp_bias": True,
}
DEEPSEEK: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
}
INDEXED: dict[str, Any] = {**DEEPSEEK, "q_lora_rank": 24, "index_n_heads": 16, "index_head_dim": 16, "index_topk": 12}
DEEPSEEK_YARN = {**YARN, "mscale": 0.707, "mscale_all_dim": 0.9}
EYES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
QWEN_EYES = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4}
GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "sliding_window": 20,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 20.0,
}
GEMMA4_EYES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "patch_size": 4,
    "position_embedding_size": 8,
}
GLM = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
SPARSE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA = {
    "rms_norm_eps": 1e-3,  # or results near 0, of keys that a query is nearly orthogonal to, are mostly rounding once normalised
    "num_hidden_layers": 3,
    "full_attention_interval": 3,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
}
SHARED = {**DELTA, **SPARSE, "shared_expert_intermediate_size": 24, "num_hidden_layers": 2, "full_attention_interval": 2}
MAMBA = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "shared_intermediate_size": 40,
    "mamba_n_heads": 4,
    "mamba_n_groups": 1,
    "mamba_d_state": 24,
    "mamba_chunk_size": 16,
}

CASES = (
    Case("llama-tied", "llama", 1, {"tie_word_embeddings": True, "vocab_size": 257}),
    Case(
        "llama-biases",
        "llama",
        2,
        {"attention_bias": True, "mlp_bias": True, "head_dim": 16, "rope_parameters": LLAMA3, "vocab_size": 301},
    ),
    Case(
        "llama-linear",
        "llama",
        3,
        {
            "num_attention_heads": 8,  # of 4 elements: tests divide them over eight devices
            "num_key_value_heads": 8,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
        },
        shard_size="50KB",
    ),
    Case(
        "llama-dynamic",
        "llama",
        4,
        {
            "num_hidden_layers": 3,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
            "max_position_embeddings": 256,
        },
        dtype="bfloat16",
    ),
    Case("llama3-layout4", "llama", 5, {"rope_parameters": LLAMA3, "tie_word_embeddings": True}, layout=4),
    Case("mistral-window", "mistral", 6, {"sliding_window": 16, "num_key_value_heads": 1}),
    Case("mistral-full", "mistral", 7, {"sliding_window": None, "head_dim": 12, "vocab_size": 263}, layout=4),
    Case(
        "mistral-sees",
        "mistral",
        86,
        {"sliding_window": None, "head_dim": 12},
        within={"model_type": "mistral3", "vision_config": {**EYES, "model_type": "pixtral"}, "tie_word_embeddings": False},
        layout=4,
        dtype="bfloat16",
    ),
    Case(
        "qwen2-gqa7",
        "qwen2",
        8,
        {"hidden_size": 56, "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True},
        layout=4,
        dtype="bfloat16",
    ),
    Case(
        "qwen2-window",
        "qwen2",
        9,
        {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    Case("qwen2-yarn", "qwen2", 10, {"rope_parameters": YARN, "max_position_embeddings": 256}, layout=4),
    Case(
        "qwen3-fp8",
        "qwen3",
        13,
        {"head_dim": 16, "tie_word_embeddings": True, "vocab_size": 281},
        stored="fp8",
        dtype="bfloat16",
    ),
    Case("llama-w4a16", "llama", 70, {"num_hidden_layers": 3}, stored="W4A16", dtype="bfloat16"),
    Case("qwen2-int8", "qwen2", 71, {"tie_word_embeddings": True}, stored="W8A8"),
    Case("mistral-fp8-channels", "mistral", 72, {"sliding_window": 24, "head_dim": 16}, layout=4, stored="FP8_DYNAMIC"),
    Case(
        "qwen3-yarn",
        "qwen3",
        12,
        {
            "head_dim": 10,
            "attention_bias": True,
            "max_position_embeddings": 256,
            "rope_parameters": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.2, "mscale_all_dim": 0.7},
        },
    ),
    Case("gemma2-caps", "gemma2", 14, {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 10, **CAPS}),
    Case(
        "gemma2-plain",
        "gemma2",
        15,
        {"num_hidden_layers": 3, "head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None},
        layout=4,
        dtype="bfloat16",
    ),
    Case(
        "gemma3-local",
        "gemma3_text",
        16,
        {
            "num_hidden_layers": 3,
            "head_dim": 16,
            "sliding_window": 20,
            "sliding_window_pattern": 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
    ),
    Case(
        "gemma3-sees",
        "gemma3_text",
        93,
        {"num_hidden_layers": 2, "head_dim": 16, "sliding_window": 20, "sliding_window_pattern": 2},
        within={"model_type": "gemma3", "vision_config": EYES, "mm_tokens_per_image": 4, "tie_word_embeddings": False},
        dtype="bfloat16",
    ),
    Case(
        "gemma4-keys",  # as 31B: fewer and wider heads in layers with full attention, whose values are their keys
        "gemma4_text",
        101,
        {
            **GEMMA4,
            "num_hidden_layers": 4,
            "num_key_value_heads": 4,
            "num_global_key_value_heads": 1,
            "global_head_dim": 32,
            "attention_k_eq_v": True,
            "tie_word_embeddings": True,
        },
    ),
    Case(
        "gemma4-shared",  # as E2B: layers are given numbers besides, the last ones read others' keys and have a wider MLP
        "gemma4_text",
        122,
        {
            **GEMMA4,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 3,
            "num_key_value_heads": 1,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 272,
            "use_double_wide_mlp": True,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
        },
        dtype="bfloat16",
    ),
    Case(
        "gemma4-experts",  # as 26B-A4B: experts beside the MLP
        "gemma4_text",
        103,
        {
            **GEMMA4,
            "num_global_key_value_heads": 1,
            "global_head_dim": 32,
            "attention_k_eq_v": True,
            "attention_bias": True,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 16,
        },
    ),
    Case(
        "gemma4-sees",
        "gemma4_text",
        104,
        {
            **GEMMA4,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 1,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 272,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "pad_token_id": 0,
        },
        within={
            "model_type": "gemma4",
            "vision_config": {**GEMMA4_EYES, "model_type": "gemma4_vision"},
            "audio_config": None,
            "tie_word_embeddings": False,
        },
        dtype="bfloat16",
    ),
    Case(
        "gemma4-unified",
        "gemma4_unified_text",
        105,
        {
            **GEMMA4,
            "num_hidden_layers": 4,
            "num_global_key_value_heads": 1,
            "global_head_dim": 32,
            "attention_k_eq_v": True,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 1,
            "use_double_wide_mlp": True,
        },
    ),
    Case("phi3-window", "phi3", 17, {"sliding_window": 40, "num_key_value_heads": 4}),
    Case(
        "phi3-short",
        "phi3",
        18,
        {**PARTLY, "rope_parameters": LONGROPE, "original_max_position_embeddings": 256},
        dtype="bfloat16",
    ),
    Case(
        "phi3-long",
        "phi3",
        29,
        {**PARTLY, "rope_parameters": LONGROPE, "original_max_position_embeddings": 32, "tie_word_embeddings": True},
        shortest=33,
    ),
    Case("olmo2-gqa", "olmo2", 20, {"head_dim": 8}),
    Case("olmo2-mha", "olmo2", 21, {"num_key_value_heads": 4, "attention_bias": True, "num_hidden_layers": 3}, layout=4),
    Case(
        "olmo3-yarn",
        "olmo3",
        60,
        {
            "num_hidden_layers": 4,
            "sliding_window": 24,
            "max_position_embeddings": 256,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
        dtype="bfloat16",
    ),
    Case("smollm3-nope", "smollm3", 22, {"num_hidden_layers": 3, "no_rope_layer_interval": 2}),
    Case(
        "smollm3-window",
        "smollm3",
        23,
        {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 24, "attention_bias": True, "mlp_bias": True},
        layout=4,
    ),
    Case(
        "seed-oss-biases",
        "seed_oss",
        61,
        {"head_dim": 12, "mlp_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 70000.0}},
        layout=4,
        dtype="bfloat16",
    ),
    Case("granite-factors", "granite", 24, FACTORS),
    Case(
        "lfm2-conv",
        "lfm2",
        140,
        {
            **LFM2,
            "num_hidden_layers": 4,
            "layer_types": ["conv", "conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
        },
    ),
    Case(
        "lfm2-adjusted",
        "lfm2",
        141,
        {
            **LFM2,
            "num_hidden_layers": 3,
            "full_attn_idxs": [1],
            "conv_L_cache": 4,
            "intermediate_size": 96,
            "block_ffn_dim_multiplier": 1.2,
            "block_multiple_of": 16,
        },
        dtype="bfloat16",
    ),
    Case(
        "lfm2-experts",
        "lfm2_moe",
        142,
        {
            **LFM2,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
        },
    ),
    Case("glm-biases", "glm", 130, {"head_dim": 12, "num_key_value_heads": 1, "partial_rotary_factor": 0.5}, dtype="bfloat16"),
    Case(
        "glm4-around",
        "glm4",
        131,
        {"head_dim": 16, "attention_bias": False, "tie_word_embeddings": True, "num_hidden_layers": 3},
        layout=4,
    ),
    Case(
        "cohere2-window",
        "cohere2",
        132,
        {"num_hidden_layers": 4, "sliding_window": 24, "layer_norm_eps": 1e-4, "logit_scale": 2.0, "tie_word_embeddings": True},
    ),
    Case(
        "cohere2-biases",
        "cohere2",
        133,
        {
            "attention_bias": True,
            "num_key_value_heads": 4,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "logit_scale": 1.5,
            "tie_word_embeddings": True,
        },
        dtype="bfloat16",
    ),
    Case(
        "ministral3-long",
        "ministral3",
        134,
        {"head_dim": 16, "max_position_embeddings": 256, "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.4}},
    ),
    Case(
        "ministral3-sees",
        "ministral3",
        135,
        {
            "head_dim": 12,
            "num_key_value_heads": 1,
            "max_position_embeddings": 256,
            "rope_parameters": {
                **YARN,
                "original_max_position_embeddings": 32,
                "llama_4_scaling_beta": 0.1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
        within={"model_type": "mistral3", "vision_config": {**EYES, "model_type": "pixtral"}, "tie_word_embeddings": False},
        dtype="bfloat16",
    ),
    Case("mixtral-window", "mixtral", 30, {"sliding_window": 24, "num_local_experts": 5, "intermediate_size": 24}),
    Case(
        "mixtral-full",
        "mixtral",
        31,
        {"sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 40, "head_dim": 12},
        layout=4,
        dtype="bfloat16",
        shard_size="100KB",
    ),
    Case(
        "gpt-oss-window",
        "gpt_oss",
        32,
        {
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "intermediate_size": 20,
            "sliding_window": 24,
            "rope_parameters": {**YARN, "rope_theta": 150000.0, "truncate": False, "beta_fast": 8.0},
        },
    ),
    Case(
        "gpt-oss-mxfp4",
        "gpt_oss",
        33,
        {
            "head_dim": 8,
            "hidden_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "sliding_window": 40,
            "layer_types": ["full_attention", "sliding_attention"],
            "attention_bias": False,
            "rope_parameters": {**YARN, "truncate": False},
        },
        layout=4,
        stored="mxfp4",
        dtype="bfloat16",
    ),
    Case(
        "qwen2-moe-shared",
        "qwen2_moe",
        40,
        {**SPARSE, "num_hidden_layers": 3, "shared_expert_intermediate_size": 20, "mlp_only_layers": [1], "norm_topk_prob": True},
    ),
    Case(
        "qwen2-moe-windows",
        "qwen2_moe",
        41,
        {
            **SPARSE,
            "num_hidden_layers": 4,
            "shared_expert_intermediate_size": 24,
            "decoder_sparse_step": 2,
            "qkv_bias": False,
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 3,
        },
        layout=4,
        dtype="bfloat16",
    ),
    Case("qwen3-moe-all", "qwen3_moe", 42, {**SPARSE, "num_experts_per_tok": 4, "head_dim": 16, "norm_topk_prob": True}),
    Case(
        "qwen3-moe-some",
        "qwen3_moe",
        43,
        {
            **SPARSE,
            "num_hidden_layers": 3,
            "head_dim": 8,
            "decoder_sparse_step": 2,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 28,
            "tie_word_embeddings": True,
        },
        layout=4,
        dtype="bfloat16",
    ),
    Case(
        "glm4-moe-norms",
        "glm4_moe",
        80,
        {
            **GLM,
            "num_hidden_layers": 3,
            "head_dim": 16,
            "use_qk_norm": True,
            "attention_bias": True,
            "routed_scaling_factor": 1.7,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.5},
        },
        dtype="bfloat16",
    ),
    Case(
        "glm4-moe-groups",
        "glm4_moe",
        81,
        {**GLM, "n_group": 2, "topk_group": 1, "n_shared_experts": 2, "norm_topk_prob": False, "tie_word_embeddings": True},
        layout=4,
    ),
    Case(
        "glm4-lite",
        "glm4_moe_lite",
        84,
        {
            **{name: value for name, value in DEEPSEEK.items() if name != "first_k_dense_replace"},
            "q_lora_rank": 24,
            "num_hidden_layers": 3,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "mlp_layer_types": ["dense", "dense", "sparse"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        },
        dtype="bfloat16",
    ),
    Case(
        "minimax-m2-part",
        "minimax_m2",
        82,
        {
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 20,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.5},
        },
        dtype="bfloat16",
    ),
    Case(
        "minimax-m2-whole",
        "minimax_m2",
        83,
        {"num_hidden_layers": 3, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 3, "intermediate_size": 24},
        layout=4,
        dtype="bfloat16",
    ),
    Case(
        "deepseek-v2-lite",
        "deepseek_v2",
        50,
        {**DEEPSEEK, "q_lora_rank": None, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 2},
        dtype="bfloat16",
    ),
    Case(
        "deepseek-v2-groups",
        "deepseek_v2",
        51,
        {
            **DEEPSEEK,
            "q_lora_rank": 20,
            "topk_method": "group_limited_greedy",
            "n_routed_experts": 9,
            "n_group": 3,
            "topk_group": 2,
            "num_experts_per_tok": 4,
            "n_shared_experts": 1,
            "routed_scaling_factor": 2.0,
            "first_k_dense_replace": 0,
            "rope_parameters": DEEPSEEK_YARN,
        },
        layout=4,
        dtype="bfloat16",
    ),
    Case(
        "deepseek-v3-groups",
        "deepseek_v3",
        52,
        {
            **DEEPSEEK,
            "q_lora_rank": 24,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "rope_parameters": {**DEEPSEEK_YARN, "mscale_all_dim": 0.707},
        },
        layout=4,
        dtype="bfloat16",
    ),
    Case(
        "deepseek-v3-fp8",
        "deepseek_v3",
        53,
        {
            **DEEPSEEK,
            "q_lora_rank": None,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 16,
            "v_head_dim": 12,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
        },
        stored="fp8",
        dtype="bfloat16",
    ),
    Case(
        "deepseek-v32-sparse",
        "deepseek_v32",
        170,
        {
            **INDEXED,
            "num_hidden_layers": 3,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "rope_parameters": {**DEEPSEEK_YARN, "mscale_all_dim": 0.707},
        },
        layout=4,
        dtype="bfloat16",
    ),
    Case(
        "deepseek-v32-fp8",
        "deepseek_v32",
        171,
        {
            **INDEXED,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 16,
            "v_head_dim": 12,
            "index_n_heads": 24,
            "index_topk": 40,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 0,
        },
        stored="fp8",
        dtype="bfloat16",
    ),
    Case(
        "glm5-full",
        "glm_moe_dsa",
        172,
        {**INDEXED, "n_routed_experts": 6, "num_experts_per_tok": 2},
        layout=4,
        dtype="bfloat16",
    ),
    Case(
        "glm5-shared",
        "glm_moe_dsa",
        176,
        {
            **INDEXED,
            "index_topk": 9,
            "index_head_dim": 12,
            "index_n_heads": 20,
            "num_hidden_layers": 4,
            "indexer_types": ["full", "shared", "full", "shared"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 80000.0},
        },
        dtype="bfloat16",
    ),
    Case("qwen3-next-experts", "qwen3_next", 111, SHARED, layout=4),
    Case(
        "qwen3-next-kinds",
        "qwen3_next",
        102,
        {
            **SHARED,
            "layer_types": ["full_attention", "linear_attention"],
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
            "attention_bias": True,
            "linear_num_key_heads": 4,
            "linear_conv_kernel_dim": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
        dtype="bfloat16",
    ),
    Case("qwen3-5-dense", "qwen3_5_text", 103, {**DELTA, "tie_word_embeddings": True}),
    Case(
        "qwen3-5-sees",
        "qwen3_5_text",
        104,
        {
            **DELTA,
            "full_attention_interval": 2,
            "linear_num_value_heads": 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [1, 1, 0],
                "mrope_interleaved": True,
            },
        },
        within={"model_type": "qwen3_5", "vision_config": QWEN_EYES, "tie_word_embeddings": False},
        dtype="bfloat16",
    ),
    Case("qwen3-5-experts", "qwen3_5_moe_text", 105, SHARED),
    Case(
        "granite4-dense",
        "granitemoehybrid",
        131,
        {
            **MAMBA,
            "num_local_experts": 0,
            "embedding_multiplier": 1.5,
            "residual_multiplier": 1.2,
            "attention_multiplier": 0.2,
            "logits_scaling": 0.5,
        },
    ),
    Case(
        "granite4-experts",
        "granitemoehybrid",
        132,
        {
            **MAMBA,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 16,
            "mamba_n_groups": 2,
            "mamba_conv_bias": False,
            "position_embedding_type": "rope",
            "layer_types": ["linear_attention", "full_attention"],
            "num_hidden_layers": 2,
        },
        dtype="bfloat16",
    ),
    Case(
        "llama4-chunks",
        "llama4_text",
        160,
        {
            **LLAMA4,
            "no_rope_layer_interval": 3,
            "interleave_moe_layer_step": 2,
            "num_hidden_layers": 4,
            "rope_parameters": LLAMA3,
            "num_experts_per_tok": 2,
        },
        layout=4,
    ),
    Case(
        "llama4-sees",
        "llama4_text",
        161,
        {
            **LLAMA4,
            "no_rope_layers": [0, 1, 1],
            "num_hidden_layers": 3,
            "use_qk_norm": False,
            "attention_bias": True,
            "attention_chunk_size": 48,
        },
        within={"model_type": "llama4", "vision_config": LLAMA4_EYES, "tie_word_embeddings": False},
        dtype="bfloat16",
    ),
    Case(
        "llama4-full",
        "llama4_text",
        162,
        {**LLAMA4, "attention_chunk_size": None, "moe_layers": [], "attn_temperature_tuning": False, "no_rope_layers": [1, 0]},
    ),
    Case(
        "nemotron-h-dense",
        "nemotron_h",
        150,
        {**NEMOTRON_H, "layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention", "mlp"]},
    ),
    Case(
        "nemotron-h-attention",
        "nemotron_h",
        151,
        {
            **NEMOTRON_H,
            "layers_block_type": ["full_attention", "mlp", "linear_attention", "mlp"],
            "n_groups": 1,
            "use_conv_bias": False,
            "mlp_bias": True,
        },
        dtype="bfloat16",
    ),
    Case(
        "nemotron-h-experts",
        "nemotron_h",
        152,
        {
            **NEMOTRON_H,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention", "moe"],
            **NEMOTRON_EXPERTS,
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 1.7,
        },
    ),
    Case(
        "nemotron-h-latent",
        "nemotron_h",
        153,
        {
            **NEMOTRON_H,
            "layers_block_type": ["full_attention", "moe", "linear_attention", "linear_attention", "moe"],
            **NEMOTRON_EXPERTS,
            "moe_latent_size": 24,
            "norm_topk_prob": False,
        },
        dtype="bfloat16",
    ),
)
