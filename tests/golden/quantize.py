"""Stores a saved golden checkpoint quantized, as the published checkpoints of some families are.

The numbers are rounded here, to the nearest that the format has; what they are then worth is transformers' to say when it
loads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

BLOCK = 16  # rows and columns that share a factor in FP8
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])

Tensors = dict[str, torch.Tensor]


def quantize(directory: Path, method: str) -> None:
    """Rewrite model.safetensors and config.json of a directory."""
    path = directory / "model.safetensors"
    plain = load_file(path)
    tensors, settings = {"fp8": fp8, "mxfp4": mxfp4}[method](plain) if method.islower() else compressed(method, plain)
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))


def fp8(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """Matrices of attention and MLP in float8_e4m3fn, each block with the factor that its largest number needs."""
    stored: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or ".layers." not in name or name.endswith(("mlp.gate.weight", "weights_proj.weight")):
            stored[name] = tensor
            continue
        rows, columns = (size // BLOCK for size in tensor.shape)
        blocks = tensor.float().reshape(rows, BLOCK, columns, BLOCK)
        scales = blocks.abs().amax(dim=(1, 3), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        stored[name] = (blocks / scales).reshape(tensor.shape).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scales.reshape(rows, columns)
    settings = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    return stored, settings


def mxfp4(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """Stacks of experts' matrices [X, in, out] as blocks and exponents of every 32 numbers along `in`."""
    stored: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 3:
            stored[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        groups = tensor.float().transpose(1, 2).reshape(experts, outputs, inputs // 32, 32)
        exponents = torch.floor(torch.log2(groups.abs().amax(dim=-1, keepdim=True))) - 2  # the largest becomes 4 to 8
        nearest = (torch.ldexp(groups.abs(), -exponents)[..., None] - FP4).abs().argmin(dim=-1)
        nibbles = (nearest + 8 * (groups < 0)).to(torch.uint8)
        stored[f"{name}_blocks"] = nibbles[..., 0::2] | nibbles[..., 1::2] << 4
        stored[f"{name}_scales"] = (exponents[..., 0] + 127).to(torch.uint8)
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    return stored, settings


def compressed(preset: str, tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """Matrices of attention and MLP as compressed-tensors stores them; that library need be there only for these."""
    from tests.golden import make_compressed

    scheme = make_compressed.scheme_of(preset)
    if scheme.weights.group_size is not None:
        scheme.weights.group_size = BLOCK
    scheme.input_activations = None
    stored: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or ".layers." not in name:
            stored[name] = tensor
            continue
        parts, _ = make_compressed.module(tensor.float(), scheme, scheme.format)
        stored |= {f"{name.removesuffix('weight')}{part}": array.contiguous() for part, array in parts.items()}
    return stored, make_compressed.settings_of(scheme)
