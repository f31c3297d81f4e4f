"""The benchmark model: a Llama of 150M parameters (hidden 1024, 12 layers, 16/4 heads of 64, ffn 2816, vocabulary 32000)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 2816,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}

HEAD_WEIGHTS = 32000 * 1024
LAYER_WEIGHTS = 12 * (1024 * (16 + 2 * 4) * 64 + 16 * 64 * 1024 + 3 * 1024 * 2816)
# What a decode step must read: every weight but the embedding table, of which it reads one line a row.
WEIGHTS_READ = HEAD_WEIGHTS + LAYER_WEIGHTS
KV_VALUES_PER_TOKEN = 12 * 2 * 4 * 64


def write_config(directory: Path, config: Mapping[str, Any] = CONFIG) -> Path:
    """A directory with config.json alone; weights are made from a seed."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory
