"""Writes tests/data/rounded: matrices, and what compressed-tensors stores of them in each scheme of `jaxserve.quantize`.

pip install torch==2.13.0 compressed-tensors==0.20.0 safetensors
python -m tests.golden.make_rounded
"""

from __future__ import annotations

from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

from tests.golden.make_compressed import ranges

DATA = Path(__file__).parents[1] / "data" / "rounded"
SHAPES = {"wide": (16, 384), "high": (200, 128)}
SCHEMES = {
    "fp8": ("FP8_DYNAMIC", "float-quantized"),
    "fp8-block": ("FP8_BLOCK", "float-quantized"),
    "int8": ("W8A16", "pack-quantized"),
    "w8a8": ("W8A8", "int-quantized"),
    "w4a16": ("W4A16", "pack-quantized"),
    "w4a16-asym": ("W4A16_ASYM", "pack-quantized"),
}


def weights() -> dict[str, torch.Tensor]:
    """Of three dtypes; rows of zeros, of one sign, and with ties are among them."""
    made = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for name, shape in SHAPES.items():
            weight = torch.randn(shape) * 0.05
            weight[0] = 0
            weight[1] = weight[1].abs() + 0.01
            weight[2] = torch.arange(shape[1]) % 31 * 0.5 - 7.5
            made[f"{name}.{str(dtype).removeprefix('torch.')}"] = weight.to(dtype)
    return made


def save(name: str, tensors: dict[str, torch.Tensor]) -> None:
    path = DATA / name / "model.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    path.chmod(0o644)


def main() -> None:
    torch.manual_seed(0)
    originals = weights()
    save("weights", originals)
    for name, (preset, form) in SCHEMES.items():
        scheme = preset_name_to_scheme(preset, ["Linear"])
        scheme.format = form
        if name == "int8":
            scheme.weights.strategy, scheme.weights.group_size = "channel", None
        tensors: dict[str, torch.Tensor] = {}
        for matrix, weight in originals.items():
            exact = weight.float()
            scale, zero = calculate_qparams(*ranges(exact, scheme.weights), scheme.weights)
            scale = scale.to(weight.dtype)  # as the library's parameters are: of the weight's dtype
            state = {"weight": exact, "weight_scale": scale.float()}
            if not scheme.weights.symmetric:
                state["weight_zero_point"] = zero
            stored = BaseCompressor.get_value_from_registry(form).compress(state, scheme)
            stored["weight_scale"] = scale
            tensors |= {f"{matrix}.{part}": tensor.contiguous() for part, tensor in stored.items()}
        save(name, tensors)


if __name__ == "__main__":
    main()
