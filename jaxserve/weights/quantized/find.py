"""Finds the quantized tensors of a checkpoint, by the method that its configuration names."""

from __future__ import annotations

from typing import NamedTuple

from jaxserve.models.quantization_methods import (
    AWQ,
    GPTQ,
    MXFP4,
    BlockFP8,
    CacheAlone,
    CompressedTensors,
    ModelOpt,
    Quantization,
    ScaledFP8,
    WeightGroup,
)
from jaxserve.weights.quantized.awq import EACH, AWQMatrix
from jaxserve.weights.quantized.float4 import Float4Matrix, GlobalScale
from jaxserve.weights.quantized.mxfp4 import BLOCKS_SUFFIX, SCALES_SUFFIX, MXFP4Stack
from jaxserve.weights.quantized.packed import WORD, PackedMatrix
from jaxserve.weights.quantized.scaled import ScaledMatrix
from jaxserve.weights.quantized.scales import DTYPES, Scales
from jaxserve.weights.quantized.stored import QuantizedTensor, Stored
from jaxserve.weights.tensor_error import TensorError

Found = dict[str, QuantizedTensor]
Block = tuple[int | None, int | None]
FP8 = "float8_e4m3fn"
_ROUNDING = ("input_scale", "input_zero_point", "input_global_scale", "output_scale", "activation_scale")
_CACHES = (*(f"{of}_{what}" for of in "qkv" for what in ("scale", "zero_point", "global_scale")), "kv_scale")
_GROUP = 16  # inputs that share a factor in NVFP4
_POWERS_GROUP = 32  # and a power of two in MXFP4 and MXFP8


def find(quantization: Quantization, stored: Stored, dtype: str) -> Found:
    """Every quantized tensor, by its name.

    Args:
        quantization: how config.json says they are quantized.
        stored: what the checkpoint has.
        dtype: name of the one that they are dequantized to; the MXFP4 of stacked experts is exact in bfloat16 and read as such.

    Raises TensorError: a quantized tensor without its factors, or whose parts do not belong together.
    """
    match quantization:
        case BlockFP8(block):
            return {name: _scaled(stored, name, f"{name}_scale_inv", block, dtype) for name in stored.of_dtype(FP8)}
        case ScaledFP8():
            return {name: _scaled_alike(stored, name, dtype) for name in stored.of_dtype(FP8)}
        case MXFP4():
            return _mxfp4(stored)
        case AWQ(group_size):
            modules = stored.ending(".qweight")
            return {f"{module}.weight": _awq(stored, module, group_size, dtype) for module in modules}
        case GPTQ():
            return {f"{module}.weight": _gptq(stored, module, quantization, dtype) for module in stored.ending(".qweight")}
        case ModelOpt():
            return _modelopt(stored, dtype)
        case CacheAlone():
            return {}
        case CompressedTensors():
            return _compressed_tensors(stored, quantization, dtype)


def unread(quantization: Quantization, stored: Stored) -> frozenset[str]:
    """Tensors that say how activations and caches may be rounded: both stay in the serving dtype."""
    if isinstance(quantization, MXFP4):
        return frozenset()
    return frozenset(name for name in stored.shapes if name.endswith(tuple(f".{what}" for what in _ROUNDING + _CACHES)))


def _scaled(
    stored: Stored, name: str, scale: str, block: Block, dtype: str, scales: tuple[str, ...] = DTYPES, zeros: str | None = None
) -> ScaledMatrix:
    matrix = stored.matrix(name, FP8, "int8")
    factors = Scales.of(stored, scale, name, matrix, block, scales)
    if zeros is not None:
        stored.require_like(zeros, name, (factors.stored,), ("int8",))
    parts = frozenset({name, scale}) | stored.present(*([zeros] if zeros else []))
    return ScaledMatrix(name, matrix, stored.dtypes[name], factors, dtype, parts, zeros)


def _scaled_alike(stored: Stored, name: str, dtype: str) -> ScaledMatrix:
    """One factor for all, or one an output: whichever there is."""
    scale = stored.require(f"{name}_scale", name)
    outputs = stored.shapes[scale][:1] not in ((), (1,))
    return _scaled(stored, name, scale, (1 if outputs else None, None), dtype)


def _mxfp4(stored: Stored) -> Found:
    tensors = {name: MXFP4Stack(name, stored.shapes[name + BLOCKS_SUFFIX]) for name in stored.ending(BLOCKS_SUFFIX)}
    for name, tensor in tensors.items():
        tensor.check_scales(stored.shapes[stored.require(name + SCALES_SUFFIX, name)])
        for part in sorted(tensor.parts):
            if stored.dtypes[part] != "uint8":
                raise TensorError(part, f"{part} is {stored.dtypes[part]}, not uint8")
    return dict(tensors)


def _awq(stored: Stored, module: str, group_size: int | None, dtype: str) -> AWQMatrix:
    words, zeros, scale = (f"{module}.{part}" for part in ("qweight", "qzeros", "scales"))
    inputs, columns = stored.matrix(words, "int32")
    scales = Scales.of(stored, scale, words, (columns * EACH, inputs), (1, group_size), inputs_first=True)
    if inputs % scales.block[1]:
        raise TensorError(words, f"{words} has {inputs} inputs, no multiple of its group_size {scales.block[1]}")
    stored.require_like(zeros, words, ((scales.stored[0], columns),), ("int32",))
    return AWQMatrix(words, (columns * EACH, inputs), scales, zeros, dtype, frozenset({words, zeros, scale}))


def _gptq(stored: Stored, module: str, method: GPTQ, dtype: str) -> PackedMatrix:
    words, zeros, scale, group_of = (f"{module}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
    rows, outputs = stored.matrix(words, "int32")
    each = WORD // method.bits
    matrix = (outputs, rows * each)
    scales = Scales.of(stored, scale, words, matrix, (1, method.group_size), inputs_first=True)
    stored.require_like(zeros, words, ((scales.stored[0], -(-outputs // each)),), ("int32",))
    ordered = stored.present(group_of)
    if ordered:
        stored.require_like(group_of, words, ((matrix[1],),), ("int32", "int64"))
    parts = frozenset({words, zeros, scale}) | ordered
    group = group_of if ordered else None
    return PackedMatrix(
        words, matrix, method.bits, True, scales, zeros, method.zero_offset, group, method.ordered, None, dtype, parts
    )


def _modelopt(stored: Stored, dtype: str) -> Found:
    found: Found = {name: _scaled_alike(stored, name, dtype) for name in stored.of_dtype(FP8) if name.endswith(".weight")}
    for name in (name for name in stored.of_dtype("uint8") if name.endswith(".weight")):
        whole = stored.require(f"{name}_scale_2", name)
        found[name] = _float4(
            stored, name, f"{name}_scale", _GROUP, (FP8,), GlobalScale(whole, stored.shapes[whole], False), dtype
        )
    return found


def _float4(
    stored: Stored, name: str, scale: str, group: int, dtypes: tuple[str, ...], whole: GlobalScale | None, dtype: str
) -> Float4Matrix:
    rows, octets = stored.matrix(name, "uint8")
    scales = Scales.of(stored, scale, name, (rows, 2 * octets), (1, group), dtypes)
    parts = frozenset({name, scale})
    if whole is not None:
        stored.require_like(whole.name, name, ((), (1,)), ("float32",))
        parts |= {whole.name}
    return Float4Matrix(name, (rows, 2 * octets), scales, whole, dtype, parts)


class _Module(NamedTuple):
    """A module of compressed-tensors whose weight is quantized."""

    name: str
    group: WeightGroup

    def part(self, what: str) -> str:
        return f"{self.name}.weight_{what}"


def _compressed_tensors(stored: Stored, method: CompressedTensors, dtype: str) -> Found:
    found: Found = {}
    for name in sorted({*stored.ending(".weight_packed"), *stored.ending(".weight_scale")}):
        group = method.group_of(name)
        if group is None:
            raise TensorError(f"{name}.weight_scale", f"{name} is quantized, but no target of config_groups is for it")
        found[f"{name}.weight"] = _compressed(stored, _Module(name, group), dtype)
    return found


def _compressed(stored: Stored, module: _Module, dtype: str) -> QuantizedTensor:
    block, packed, scale = module.group.block, module.part("packed"), module.part("scale")
    match module.group.format:
        case "quantized" | "mxfp8-quantized":
            name = stored.require(f"{module.name}.weight", module.name)
            zeros = next(iter(stored.present(module.part("zero_point"))), None)
            powers = module.group.format == "mxfp8-quantized"
            read = ("uint8", "float8_e8m0fnu") if powers else DTYPES
            return _scaled(stored, name, scale, (1, _POWERS_GROUP) if powers else block, dtype, read, zeros)
        case "pack-quantized":
            return _packed(stored, module, dtype)
        case "mxfp4-pack-quantized":
            stored.require(packed, module.name)
            return _float4(stored, packed, scale, _POWERS_GROUP, ("uint8", "float8_e8m0fnu"), None, dtype)
        case "nvfp4-pack-quantized":
            stored.require(packed, module.name)
            whole = stored.require(module.part("global_scale"), module.name)
            return _float4(stored, packed, scale, _GROUP, (FP8,), GlobalScale(whole, stored.shapes[whole], True), dtype)


def _packed(stored: Stored, module: _Module, dtype: str) -> PackedMatrix:
    words, scale, zeros, group_of, logical = (module.part(what) for what in ("packed", "scale", "zero_point", "g_idx", "shape"))
    outputs, columns = stored.matrix(stored.require(words, module.name), "int32")
    each = WORD // module.group.bits
    matrix = (outputs, columns * each)
    scales = Scales.of(stored, scale, words, matrix, module.group.block)
    there = stored.present(zeros, group_of, logical)
    if zeros in there:
        groups = -(-matrix[1] // scales.block[1])
        stored.require_like(zeros, words, ((-(-outputs // each), groups),), ("int32",))
    if group_of in there:
        stored.require_like(group_of, words, ((matrix[1],),), ("int32", "int64"))
    if logical in there:
        stored.require_like(logical, words, ((2,),), ("int32", "int64"))
    points, order, shape = (name if name in there else None for name in (zeros, group_of, logical))
    parts = there | {words, scale}
    return PackedMatrix(words, matrix, module.group.bits, False, scales, points, 0, order, order is not None, shape, dtype, parts)
