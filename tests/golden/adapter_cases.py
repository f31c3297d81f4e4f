"""The golden adapters: which checkpoints they are of, and what PEFT is told to make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class AdapterCase:
    """One adapter.

    Attributes:
        lora: arguments of peft.LoraConfig.
        transformers: whose model is adapted: of 4 each expert's projections are modules, of 5 a parameter has all experts'.
    """

    base: str
    name: str
    seed: int
    lora: dict[str, Any] = field(default_factory=dict)
    transformers: int = 5

    @property
    def path(self) -> str:
        return f"{self.base}/{self.name}"


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
EXPERT = r".*\.(experts\.\d+|shared_experts?)\.(gate_proj|up_proj|down_proj|w1|w2|w3)"
PARAMETERS = {"target_modules": [], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
INTERLEAVED = ["in_proj_qkvz", "in_proj_ba", "out_proj"]
LATENT = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]

ADAPTER_CASES = (
    AdapterCase("llama-biases", "all", 1, {"r": 4, "lora_alpha": 6, "target_modules": "all-linear"}),
    AdapterCase("llama-biases", "stable", 2, {"r": 8, "lora_alpha": 8, "use_rslora": True, "target_modules": ATTENTION[::2]}),
    AdapterCase(
        "llama-biases",
        "patterns",
        3,
        {
            "r": 2,
            "lora_alpha": 4,
            "target_modules": r".*\.(o_proj|down_proj|up_proj)",
            "rank_pattern": {"down_proj": 7, r"layers\.1\.self_attn\.o_proj": 5},
            "alpha_pattern": {"up_proj": 9},
        },
    ),
    AdapterCase(
        "llama-biases",
        "one-layer",
        4,
        {"r": 3, "lora_alpha": 3, "target_modules": ATTENTION + MLP, "layers_to_transform": [1]},
    ),
    AdapterCase("gemma3-local", "all", 5, {"r": 4, "lora_alpha": 4, "target_modules": "all-linear"}),
    AdapterCase("gemma3-local", "mlp", 6, {"r": 5, "lora_alpha": 10, "target_modules": MLP}),
    AdapterCase("phi3-short", "fused", 7, {"r": 4, "lora_alpha": 4, "target_modules": FUSED}),
    AdapterCase("phi3-short", "gate", 8, {"r": 6, "lora_alpha": 3, "target_modules": ["gate_up_proj"]}),
    AdapterCase("qwen3-moe-some", "attention", 9, {"r": 4, "lora_alpha": 4, "target_modules": ATTENTION}),
    AdapterCase("qwen3-moe-some", "queries", 10, {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}),
    AdapterCase(
        "deepseek-v3-groups",
        "latents",
        11,
        {"r": 4, "lora_alpha": 4, "target_modules": LATENT},
    ),
    AdapterCase("deepseek-v3-groups", "outputs", 12, {"r": 3, "lora_alpha": 6, "target_modules": ["o_proj"]}),
    AdapterCase("qwen3-moe-some", "parameters", 13, {"r": 4, "lora_alpha": 4, **PARAMETERS}),
    AdapterCase("qwen2-moe-shared", "experts", 14, {"r": 3, "lora_alpha": 3, "target_modules": EXPERT}, transformers=4),
    AdapterCase("mixtral-full", "parameters", 15, {"r": 4, "lora_alpha": 2, **PARAMETERS}),
    AdapterCase(
        "mixtral-full",
        "some-experts",
        16,
        {
            "r": 3,
            "lora_alpha": 6,
            "target_modules": r".*\.(experts\.[1-6]\.(w1|w2)|q_proj)",
            "rank_pattern": {r"layers\.1\..*\.w2": 6},
        },
        transformers=4,
    ),
    AdapterCase(
        "gpt-oss-window",
        "parameters",
        17,
        {
            **PARAMETERS,
            "r": 3,
            "lora_alpha": 3,
            "target_modules": ATTENTION,
            "rank_pattern": {"mlp.experts.gate_up_proj": 5},
            "alpha_pattern": {"mlp.experts.gate_up_proj": 10},
        },
    ),
    AdapterCase(
        "gpt-oss-window",
        "down",
        18,
        {"r": 4, "lora_alpha": 4, "target_modules": [], "target_parameters": ["0.mlp.experts.down_proj"]},
    ),
    AdapterCase("qwen3-next-experts", "attention", 19, {"r": 4, "lora_alpha": 4, "target_modules": [*ATTENTION, *INTERLEAVED]}),
    AdapterCase("qwen3-5-dense", "all", 20, {"r": 3, "lora_alpha": 6, "target_modules": "all-linear"}),
    AdapterCase(
        "qwen3-5-dense", "inputs", 21, {"r": 4, "lora_alpha": 4, "target_modules": ["in_proj_qkv", "in_proj_a", "out_proj"]}
    ),
    AdapterCase("gemma4-shared", "all", 19, {"r": 4, "lora_alpha": 4, "target_modules": ATTENTION + MLP}),
    AdapterCase("gemma4-experts", "all", 20, {"r": 4, "lora_alpha": 4, "target_modules": ATTENTION + MLP}),
    AdapterCase(
        "gemma4-experts",
        "parameters",
        21,
        {
            "r": 3,
            "lora_alpha": 3,
            "target_modules": [],
            "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
        },
    ),
)
