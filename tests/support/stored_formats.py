"""Checkpoints of random matrices as quantized checkpoints store them, and the scheme that each format is held in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from jaxserve.models.registry import decoder_config, weight_rules
from pallas_kernels.quantization import Float8Weight, FourBit, Int8
from tests.support import packing

GROUP = 32
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 31,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
QWEN3_MOE = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 16,
    "max_position_embeddings": 64,
    "moe_intermediate_size": 96,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}


def write(directory: Path, method: Mapping[str, Any], quantized: Any, config: Mapping[str, Any] = LLAMA) -> Path:
    """A checkpoint whose projections are what `quantized` makes of a matrix: tensors by the end of their name."""
    rng = np.random.default_rng(0)
    stored: dict[str, np.ndarray] = {}
    for source in (source for rule in weight_rules(decoder_config(config)) for source in rule.sources):
        module = source.name.removesuffix(".weight")
        if len(source.shape) == 2 and ".layers." in source.name and not source.name.endswith("mlp.gate.weight"):  # a router
            stored |= {f"{module}.{name}": array for name, array in quantized(rng, *source.shape).items()}
        else:
            stored[source.name] = rng.normal(size=source.shape).astype(np.float32)
    directory.mkdir()
    save_file({name: np.ascontiguousarray(array) for name, array in stored.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": method}))
    return directory


def whole_numbers(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
    zeros = rng.integers(1, 16, (outputs, inputs // GROUP))
    scales = rng.uniform(0.01, 0.1, zeros.shape).astype(np.float16)
    return {"numbers": rng.integers(0, 16, (outputs, inputs)), "zeros": zeros, "scales": scales}


def awq(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
    return packing.awq(**whole_numbers(rng, outputs, inputs))


def gptq(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
    order = {"g_idx": (np.arange(inputs) // GROUP).astype(np.int32)}
    return packing.gptq(**whole_numbers(rng, outputs, inputs), bits=4, offset=1) | order


def nvfp4(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
    return {
        "weight": rng.integers(0, 256, (outputs, inputs // 2), np.uint8),
        "weight_scale": rng.uniform(0.5, 2, (outputs, inputs // 16)).astype(ml_dtypes.float8_e4m3fn),
        "weight_scale_2": np.full((), 0.01, np.float32),
    }


def int8(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
    """With the number that int8 rounding here never gives."""
    numbers = rng.integers(-128, 128, (outputs, inputs)).astype(np.int8)
    numbers[:, ::7] = -128
    return {"weight": numbers, "weight_scale": rng.uniform(0.001, 0.01, (outputs, 1)).astype(np.float32)}


def packed8(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
    return {
        "weight_packed": packing.pack_rows(rng.integers(0, 256, (outputs, inputs)), 8),
        "weight_scale": rng.uniform(0.001, 0.01, (outputs, 1)).astype(np.float32),
        "weight_shape": np.array([outputs, inputs], np.int64),
    }


def float8(rng: np.random.Generator, outputs: int, inputs: int) -> np.ndarray:
    """Every number of E4M3."""
    codes = rng.integers(0, 127, (outputs, inputs)) + 128 * rng.integers(0, 2, (outputs, inputs))
    return codes.astype(np.uint8).view(ml_dtypes.float8_e4m3fn)


def channels8(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
    scales = rng.uniform(0.0001, 0.001, (outputs, 1)).astype(np.float32)
    return {"weight": float8(rng, outputs, inputs), "weight_scale": scales}


def tensor8(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
    return {"weight": float8(rng, outputs, inputs), "weight_scale": np.array(rng.uniform(0.0001, 0.001), np.float32)}


def blocks8(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
    grid = -(-outputs // GROUP), -(-inputs // GROUP)
    scales = rng.uniform(0.0001, 0.001, grid).astype(np.float32)
    return {"weight": float8(rng, outputs, inputs), "weight_scale_inv": scales}


GPTQ_METHOD = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}
INT8_GROUP = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}}
FLOAT8_GROUP = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}}
FORMATS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP}, awq, FourBit("int4", GROUP, zeros=True)),
    "gptq": (GPTQ_METHOD, gptq, FourBit("int4", GROUP, zeros=True)),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4, FourBit("fp4", 16)),
    "fp8 by channels": (
        {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": FLOAT8_GROUP}},
        channels8,
        Float8Weight(),
    ),
    "fp8": ({"quant_method": "fp8"}, tensor8, Float8Weight()),
    "fp8 of ModelOpt": ({"quant_method": "modelopt", "quant_algo": "FP8"}, tensor8, Float8Weight()),
    "fp8 by blocks": ({"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]}, blocks8, Float8Weight(GROUP)),
    "int8": (
        {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": INT8_GROUP}},
        int8,
        Int8(),
    ),
    "packed int8": (
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": INT8_GROUP}},
        packed8,
        Int8(),
    ),
}


def fp8_blocks(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
    scales = rng.uniform(0.001, 0.01, (-(-outputs // 128), -(-inputs // 128))).astype(np.float32)
    return {"weight": float8(rng, outputs, inputs), "weight_scale_inv": scales}


FP8_BLOCKS = ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, fp8_blocks, Float8Weight(128))
