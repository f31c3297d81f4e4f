"""Writes tests/data/formats: a tiny Llama in each quantized format, as that format's own library stores it and reads it back.

Python 3.11, on a CPU:
pip install torch==2.13.0 transformers==5.24.0 compressed-tensors==0.20.0 nvidia-modelopt==0.47.0 requests datasets accelerate
pip install --no-deps logbar device-smi tokenicer threadpoolctl pypcre kernels defuser pillow torchao
pip download --no-deps autoawq==0.2.9 gptqmodel==7.7.0    # unpack both: their setups want CUDA, what packs numbers does not
PYTHONPATH=autoawq-0.2.9:gptqmodel-7.7.0 python -m tests.golden.make_formats [NAME ...]

model.safetensors and config.json are the checkpoint; expected.npz has what the library reads of its
quantized weights, in float32.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.golden.make import randomize

DATA = Path(__file__).parents[1] / "data" / "formats"
GROUP = 32
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "architectures": ["LlamaForCausalLM"],
}
Tensors = dict[str, torch.Tensor]


class Written(NamedTuple):
    """What is stored, what the quantized weights are read as, the model's sizes, and `quantization_config`."""

    stored: Tensors
    expected: Tensors
    sizes: dict[str, Any]
    settings: dict[str, Any]


def llama(sizes: dict[str, Any]) -> LlamaForCausalLM:
    """Random weights that make every part matter."""
    model = LlamaForCausalLM(LlamaConfig(**sizes)).float()
    randomize(model, 5)
    return model


def each_linear(sizes: dict[str, Any], pack: Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor] | None]) -> Written:
    """Pack the projections of all layers but those for which `pack` has nothing; the rest is stored as it is."""
    stored: Tensors = {}
    expected: Tensors = {}
    for name, weight in llama(sizes).state_dict().items():
        module = name.removesuffix(".weight")
        packed = pack(module, weight) if weight.ndim == 2 and ".layers." in name else None
        if packed is None:
            stored[name] = weight
            continue
        parts, expected[name] = packed
        stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    return Written(stored, expected, sizes, {})


COMPRESSED = ("FP8_BLOCK", "W8A8", "W4A16", "W4A16_ASYM", "W4A16_ORDER", "NVFP4A16", "MXFP4A16", "MXFP8A16")
"""By layer; of the fourth one keys, and of the last layer all are not quantized."""
IGNORED = ("lm_head", "model.layers.3.self_attn.k_proj", r"re:model\.layers\.8\..*")


def compressed_tensors(kinds: tuple[str, ...], ignored: tuple[str, ...]) -> Written:
    """Each layer by a preset of its own."""
    from tests.golden import make_compressed

    schemes = {}
    for layer, kind in enumerate(kinds):
        scheme = schemes[layer] = make_compressed.scheme_of(kind)
        scheme.targets = [rf"re:model\.layers\.{layer}\..*_proj$"]
        if kind.startswith("W4"):
            scheme.weights.group_size = GROUP
        if kind == "FP8_BLOCK":
            scheme.weights.block_structure = [GROUP, GROUP]

    def pack(module: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor] | None:
        layer = int(module.split(".")[2])
        if layer not in schemes or module in ignored:
            return None
        kind, scheme = kinds[layer], schemes[layer]
        store = make_compressed.reordered if kind == "W4A16_ORDER" else make_compressed.module
        parts, read = store(weight, scheme, scheme.format)
        if kind == "NVFP4A16":
            read = nvfp4_in_float32(parts, scheme)  # the library's own reader rounds to bfloat16
        if kind == "FP8":
            parts["input_scale"] = torch.tensor([0.02])
        return parts, read

    written = each_linear(SIZES | {"num_hidden_layers": len(kinds) + len(ignored[2:])}, pack)
    for kind, scheme in zip(kinds, schemes.values(), strict=True):
        if kind == "W4A16_ORDER":
            scheme.weights.actorder = "group"
    groups = {f"group_{layer}": scheme.model_dump(mode="json", exclude_none=True) for layer, scheme in schemes.items()}
    common = {"quant_method": "compressed-tensors", "format": "mixed-precision", "quantization_status": "compressed"}
    return written._replace(settings=common | {"config_groups": groups, "ignore": list(ignored), "kv_cache_scheme": None})


def nvfp4_in_float32(parts: Tensors, scheme: Any) -> torch.Tensor:
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    packed = parts["weight_packed"]
    numbers = unpack_fp4_from_uint8(packed, packed.shape[0], 2 * packed.shape[1], dtype=torch.float32)
    scale, whole = parts["weight_scale"].float(), parts["weight_global_scale"]
    read: torch.Tensor = dequantize(x_q=numbers, scale=scale, args=scheme.weights, global_scale=whole, dtype=torch.float32)
    return read


def groups_of(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales, in numbers of float16, and zero points [O, groups] from 1 to 15."""
    groups = weight.reshape(len(weight), -1, GROUP)
    least, greatest = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((greatest - least) / 15).half().float()
    return scales, (-least / scales).round().clamp(1, 15)


def awq() -> Written:
    """AutoAWQ's linear module, version gemm."""
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    def pack(_: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        scales, zeros = groups_of(weight)
        whole = torch.round(weight / scales.repeat_interleave(GROUP, 1) + zeros.repeat_interleave(GROUP, 1)).clamp(0, 15)
        fitting = (whole - zeros.repeat_interleave(GROUP, 1)) * scales.repeat_interleave(GROUP, 1)  # the module does not clip
        linear = torch.nn.Linear(*weight.shape[::-1], bias=False)
        linear.weight.data = fitting
        packed = WQLinear_GEMM.from_linear(linear, 4, GROUP, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
        read = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), 4, GROUP)
        return {"qweight": packed.qweight, "qzeros": packed.qzeros, "scales": packed.scales}, read.T

    settings = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    return each_linear(SIZES, pack)._replace(settings=settings)


def gptq(form: str, ordered: bool) -> Written:
    """GPTQModel's linear module."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import QuantizeConfig
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    config = QuantizeConfig(bits=4, group_size=GROUP, desc_act=ordered, sym=False)

    def pack(_: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        outputs, inputs = weight.shape
        order = torch.randperm(inputs) if ordered else torch.arange(inputs)
        group_of = (torch.argsort(order) // GROUP).to(torch.int32)
        linear = torch.nn.Linear(inputs, outputs, bias=False)
        linear.weight.data = weight
        sizes = {"in_features": inputs, "out_features": outputs}
        packed = TorchLinear(4, GROUP, sym=False, desc_act=ordered, **sizes)
        packed.pack_original(linear, *groups_of(weight[:, order]), group_of)
        packed.post_init()
        stored = {name: getattr(packed, name).clone() for name in ("qweight", "scales", "g_idx")}
        packed.scales, packed.dequant_dtype = packed.scales.float(), torch.int32
        read = packed.dequantize_weight().T
        if form == "gptq":
            convert_gptq_v2_to_v1_format_module(packed, config)
        return stored | {"qzeros": packed.qzeros.clone()}, read

    settings = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": ordered, "sym": False}
    return each_linear(SIZES, pack)._replace(settings=settings | {"checkpoint_format": form})


def modelopt(algorithm: str) -> Written:
    """ModelOpt's own export."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor

    model = llama(SIZES)
    mtq.quantize(model, getattr(mtq, f"{algorithm}_DEFAULT_CFG"), lambda model: model(torch.arange(64).reshape(2, 32)))
    folder = DATA / "exported"
    export_hf_checkpoint(model, export_dir=folder)
    stored = load_file(folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    shutil.rmtree(folder)
    expected = {}
    for name in (name for name in stored if name.endswith("_proj.weight")):
        codes, scale = stored[name], stored[f"{name}_scale"]
        if algorithm == "FP8":
            expected[name] = FP8QTensor(codes.shape, torch.float32, codes).dequantize(torch.float32, scale=scale)
        else:
            shape, whole = (codes.shape[0], 2 * codes.shape[1]), stored[f"{name}_scale_2"]
            read = NVFP4QTensor(shape, torch.float32, codes)
            expected[name] = read.dequantize(torch.float32, scale=scale, double_scale=whole, block_sizes={-1: 16})
    return Written(stored, expected, SIZES, settings)


def fp8_blocks() -> Written:
    """What transformers saves of FP8 in blocks of 128 x 128."""
    from types import SimpleNamespace

    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    config = FineGrainedFP8Config(modules_to_not_convert=["lm_head"], weight_block_size=(128, 128))
    quantizer = SimpleNamespace(quantization_config=config)
    writer, reader = Fp8Quantize(quantizer), Fp8Dequantize(quantizer)

    def pack(_: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        made = writer.convert({"weight": weight})
        return made, reader._dequantize_one(made["weight"], made["weight_scale_inv"], torch.float32)

    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 4, "num_hidden_layers": 1}
    return each_linear(SIZES | sizes, pack)._replace(settings=config.to_dict())


FORMATS: dict[str, Callable[[], Written]] = {
    "compressed-tensors": lambda: compressed_tensors(COMPRESSED, IGNORED),
    "compressed-tensors-fp8": lambda: compressed_tensors(("FP8", "FP8_DYNAMIC"), IGNORED[:1]),
    "fp8-blocks": fp8_blocks,
    "awq": awq,
    "gptq": lambda: gptq("gptq", ordered=False),
    "gptq-v2": lambda: gptq("gptq_v2", ordered=False),
    "gptq-ordered": lambda: gptq("gptq", ordered=True),
    "modelopt-fp8": lambda: modelopt("FP8"),
    "modelopt-nvfp4": lambda: modelopt("NVFP4"),
}


def main() -> None:
    for name in sys.argv[1:] or FORMATS:
        torch.manual_seed(0)
        written = FORMATS[name]()
        folder = DATA / name
        folder.mkdir(parents=True, exist_ok=True)
        config = written.sizes | {"model_type": "llama", "quantization_config": written.settings}
        described = json.dumps(config, indent=2, sort_keys=True)
        (folder / "config.json").write_text(described + "\n")
        save_file({tensor: array.contiguous() for tensor, array in written.stored.items()}, folder / "model.safetensors")
        (folder / "model.safetensors").chmod(0o644)
        np.savez_compressed(folder / "expected.npz", **{tensor: array.numpy() for tensor, array in written.expected.items()})
        print(name, sum(file.stat().st_size for file in folder.iterdir()))


if __name__ == "__main__":
    with torch.no_grad():
        main()
