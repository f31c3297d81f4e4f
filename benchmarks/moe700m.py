"""A benchmark model with experts: a Qwen3-MoE of 700M parameters.

Hidden 1024, 8 layers, 32 experts of 768, of which a token visits 4; the rest as `benchmarks.llama150m`.
"""

from __future__ import annotations

from benchmarks import llama150m

CONFIG = llama150m.CONFIG | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 8,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}
