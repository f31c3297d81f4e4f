"""Writes tests/data/compressed_tensors: two matrices in each format of compressed-tensors, as that library stores and reads them.

pip install torch==2.13.0 compressed-tensors==0.20.0 safetensors
python tests/golden/make_compressed.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file

DATA = Path(__file__).parents[1] / "data" / "compressed_tensors"
SHAPES = {"model.layers.0.mlp.up_proj": (16, 256), "model.layers.0.mlp.down_proj": (130, 128)}
FORMATS = {
    "FP8": "float-quantized",
    "FP8_DYNAMIC": "float-quantized",
    "FP8_BLOCK": "float-quantized",
    "W8A8": "int-quantized",
    "W8A16": "pack-quantized",
    "W4A16": "pack-quantized",
    "W4A16_ASYM": "pack-quantized",
    "W4A16_ORDER": "pack-quantized",
    "NVFP4A16": "nvfp4-pack-quantized",
    "MXFP4A16": "mxfp4-pack-quantized",
    "MXFP8A16": "mxfp8-quantized",
}


def ranges(weight: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the greatest number of each group."""
    rows, columns = weight.shape
    match str(args.strategy):
        case "tensor":
            return weight.amin().reshape(1), weight.amax().reshape(1)
        case "channel":
            groups = weight.reshape(rows, 1, columns)
        case "block":
            high, wide = args.block_structure
            padded = torch.nn.functional.pad(weight, (0, -columns % wide, 0, -rows % high))
            groups = padded.reshape(-(-rows // high), high, -(-columns // wide), wide).transpose(1, 2).flatten(2)
        case _:
            groups = weight.reshape(rows, -1, args.group_size)
    return groups.amin(-1), groups.amax(-1)


def module(weight: torch.Tensor, scheme: QuantizationScheme, form: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What is stored of a weight, and what it is read as, in float32."""
    args = scheme.weights
    state = {"weight": weight}
    least, greatest = ranges(weight, args)
    whole = None
    if str(args.strategy) == "tensor_group":
        whole = state["weight_global_scale"] = generate_gparam(weight.amin(), weight.amax())
    scale, zero = calculate_qparams(least, greatest, args, global_scale=whole)
    state["weight_scale"] = scale
    if not args.symmetric:
        state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(state, scheme)
    return stored, compressor.decompress(dict(stored), scheme)["weight"].float()


def reordered(weight: torch.Tensor, scheme: QuantizationScheme, form: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Groups of inputs that do not follow one another: what releases that know `actorder` store."""
    order = torch.randperm(weight.shape[1])
    back = torch.argsort(order)
    stored, read = module(weight[:, order], scheme, form)
    codes = unpack_from_int32(stored["weight_packed"], scheme.weights.num_bits, weight.shape)
    stored["weight_packed"] = pack_to_int32(codes[:, back].contiguous(), scheme.weights.num_bits)
    stored["weight_g_idx"] = (back // scheme.weights.group_size).to(torch.int32)
    return stored, read[:, back]


def scheme_of(kind: str) -> QuantizationScheme:
    """A preset for all linear modules."""
    scheme = preset_name_to_scheme(kind.removesuffix("_ORDER"), ["Linear"])
    scheme.format = FORMATS[kind]
    return scheme


def settings_of(scheme: QuantizationScheme) -> dict[str, Any]:
    """The `quantization_config` of a checkpoint."""
    group = scheme.model_dump(mode="json", exclude_none=True)
    common = {"quant_method": "compressed-tensors", "format": scheme.format, "quantization_status": "compressed"}
    return {**common, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


def main() -> None:
    torch.manual_seed(0)
    for kind, form in FORMATS.items():
        scheme = scheme_of(kind)
        store = reordered if kind == "W4A16_ORDER" else module
        tensors: dict[str, torch.Tensor] = {}
        expected: dict[str, torch.Tensor] = {}
        for name, shape in SHAPES.items():
            stored, read = store(torch.randn(shape) * 0.05, scheme, form)
            tensors |= {f"{name}.{part}": tensor.contiguous() for part, tensor in stored.items()}
            expected[f"{name}.weight"] = read.contiguous()
        if store is reordered:
            scheme.weights.actorder = "group"
        config = settings_of(scheme)
        folder = DATA / kind.lower()
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "model.safetensors")
        save_file(expected, folder / "expected.safetensors")
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}, indent=2) + "\n")


if __name__ == "__main__":
    main()
