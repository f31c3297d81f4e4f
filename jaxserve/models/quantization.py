"""How the weights of a checkpoint are quantized, as `quantization_config` of config.json says.

Only how they are stored: parameters are dequantized when they are loaded, and the model is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models import compressed_tensors
from jaxserve.models.fields import HfFields
from jaxserve.models.quantization_methods import AWQ, GPTQ, MXFP4, BlockFP8, CacheAlone, ModelOpt, Quantization, ScaledFP8

# The keys of each method that are understood; others might change what the numbers mean, so they are refused. Which
# modules are quantized is seen from their tensors.
_MODULES = frozenset({"quant_method", "dequantize", "modules_to_not_convert", "modules_to_convert", "ignored_layers"})
_WRITERS = frozenset(  # how writers found the numbers, and what runtimes may do with them
    [
        "damp_percent",
        "damp_auto_increment",
        "static_groups",
        "true_sequential",
        "mse",
        "desc_act",
        "sym",
        "lm_head",
        "quantizer",
        "meta",
        "tokenizer",
        "dataset",
        "model_name_or_path",
        "model_file_base_name",
        "model_seqlen",
        "block_name_to_quantize",
        "module_name_preceding_first_block",
        "batch_size",
        "modules_in_block_to_quantize",
        "pad_token_id",
        "cache_block_outputs",
        "max_input_length",
        "use_cuda_fp16",
        "use_exllama",
        "disable_exllama",
        "exllama_config",
        "backend",
        "is_marlin_format",
    ]
)
_FUSING = frozenset({"do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config", "backend"})
_KEYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "mxfp4": _MODULES,
        "fp8": _MODULES | {"fmt", "weight_block_size", "activation_scheme", "scale_fmt", "expert_dtype", "kv_cache_scheme"},
        "compressed-tensors": compressed_tensors.KEYS,
        "awq": _MODULES | _FUSING | {"bits", "group_size", "zero_point", "version"},
        "gptq": _MODULES | _WRITERS | {"bits", "group_size", "checkpoint_format", "format", "pack_dtype"},
        "modelopt": _MODULES
        | {"quant_algo", "kv_cache_quant_algo", "kv_cache_scheme", "group_size", "exclude_modules", "ignore", "config_groups"}
        | {"producer", "quantized_layers"},
    }
)
_FP8_VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fmt": ("e4m3", "float8_e4m3fn"),
        "activation_scheme": ("dynamic", "static"),
        "scale_fmt": ("float", "ue8m0"),
        "expert_dtype": ("fp8",),
    }
)
_GPTQ_BITS = (2, 4, 8)
_GPTQ_FORMATS: Mapping[str, int] = MappingProxyType({"gptq": 1, "gptq_v2": 0})
_MODELOPT = ("FP8", "NVFP4", "MIXED_PRECISION")


def quantization_from_hf(hf: Mapping[str, Any]) -> Quantization | None:
    """The quantization that a parsed config.json describes; None if there is none.

    Raises:
        UnsupportedModelError: a method, a format or a key that jaxserve does not read, named.
        CheckpointError: a value that is missing or impossible.
    """
    table = hf.get("quantization_config")
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise CheckpointError(f"config.json: quantization_config must be an object, got {table!r:.80}")
    fields = HfFields(table, "config.json, quantization_config")
    method = table.get("quant_method")
    if not isinstance(method, str) or method not in _KEYS:
        raise fields.unsupported("quant_method", f"supported are {', '.join(_KEYS)}")
    for name in sorted(set(table) - _KEYS[method]):
        if table[name] not in (None, {}, []):
            raise fields.unsupported(name, f"{method} is read without it")
    return CacheAlone() if quantizes_cache_alone(table) else _READERS[method](fields)


def quantizes_cache_alone(table: Mapping[str, Any]) -> bool:
    """Whether a `quantization_config` is of the KV cache and of no weights: its scales are then all that it adds."""
    match table.get("quant_method"):
        case "compressed-tensors":
            return not table.get("config_groups") and table.get("kv_cache_scheme") is not None
        case "modelopt":
            return table.get("quant_algo") is None and table.get("kv_cache_quant_algo") is not None
    return False


def _fp8(fields: HfFields) -> BlockFP8 | ScaledFP8:
    for name, supported in _FP8_VALUES.items():
        if fields.has(name) and fields.hf[name] not in supported:
            raise fields.unsupported(name, f"supported are {', '.join(supported)}")
    sizes = fields.hf.get("weight_block_size")
    if sizes is None:
        return ScaledFP8()
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise CheckpointError(f"{fields.where}: weight_block_size must be two positive integers, got {sizes!r:.80}")
    return BlockFP8((sizes[0], sizes[1]))


def _awq(fields: HfFields) -> AWQ:
    if str(fields.hf.get("version", "gemm")).lower() != "gemm":
        raise fields.unsupported("version", "supported is gemm")
    if fields.integer("bits") != 4:
        raise fields.unsupported("bits", "supported is 4")
    if not fields.flag("zero_point", True):
        raise fields.unsupported("zero_point", "weights are read with zero points")
    return AWQ(_group_size(fields))


def _gptq(fields: HfFields) -> GPTQ:
    if (bits := fields.integer("bits")) not in _GPTQ_BITS:
        raise fields.unsupported("bits", f"supported are {', '.join(map(str, _GPTQ_BITS))}")
    stored = fields.hf.get("checkpoint_format") or fields.hf.get("format") or "gptq"
    if not isinstance(stored, str) or stored not in _GPTQ_FORMATS or fields.flag("is_marlin_format", False):
        raise fields.unsupported("checkpoint_format", f"supported are {', '.join(_GPTQ_FORMATS)}, not Marlin's")
    if (fields.hf.get("pack_dtype") or "int32") != "int32":
        raise fields.unsupported("pack_dtype", "supported is int32")
    return GPTQ(bits, _group_size(fields), 1 if _GPTQ_FORMATS[stored] else 0, fields.flag("desc_act", False))


def _group_size(fields: HfFields) -> int | None:
    return None if fields.hf.get("group_size") == -1 else fields.integer("group_size")


def _modelopt(fields: HfFields) -> ModelOpt:
    if fields.hf.get("quant_algo") not in _MODELOPT:
        raise fields.unsupported("quant_algo", f"supported are {', '.join(_MODELOPT)}")
    for layer, table in fields.table("quantized_layers").items():
        algorithm = table.get("quant_algo") if isinstance(table, Mapping) else table
        if algorithm not in _MODELOPT[:2]:
            named = HfFields({layer: algorithm}, f"{fields.where}, quantized_layers")
            raise named.unsupported(layer, f"supported are {', '.join(_MODELOPT[:2])}")
    return ModelOpt()


_READERS: Mapping[str, Callable[[HfFields], Quantization]] = MappingProxyType(
    {
        "mxfp4": lambda _: MXFP4(),
        "fp8": _fp8,
        "compressed-tensors": compressed_tensors.compressed_tensors,
        "awq": _awq,
        "gptq": _gptq,
        "modelopt": _modelopt,
    }
)
