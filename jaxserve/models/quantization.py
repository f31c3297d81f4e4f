"""How the weights of a checkpoint are quantized, as `quantization_config` of config.json says.

Only how they are stored: parameters are dequantized when they are loaded, and the model is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.fields import HfFields


@dataclass(frozen=True, slots=True)
class BlockFP8:
    """float8_e4m3fn with a factor for every block of a matrix (DeepSeek-AI 2024).

    Attributes:
        block: rows and columns of a block; those at the edges may be smaller.
    """

    block: tuple[int, int]


@dataclass(frozen=True, slots=True)
class MXFP4:
    """The experts' matrices in the OCP Microscaling format MXFP4: 4-bit floats, 32 of which share a power of two."""


Quantization = BlockFP8 | MXFP4

# The keys of each method that are understood; others might change what the numbers mean, so they are refused. Which
# modules are quantized is seen from their tensors.
_MODULES = frozenset({"quant_method", "dequantize", "modules_to_not_convert", "modules_to_convert", "ignored_layers"})
_KEYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {"mxfp4": _MODULES, "fp8": _MODULES | {"fmt", "weight_block_size", "activation_scheme", "scale_fmt", "expert_dtype"}}
)
_FP8_VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fmt": ("e4m3", "float8_e4m3fn"),
        "activation_scheme": ("dynamic",),
        "scale_fmt": ("float", "ue8m0"),
        "expert_dtype": ("fp8",),
    }
)


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
        if table[name] is not None:
            raise fields.unsupported(name, f"{method} is read without it")
    return MXFP4() if method == "mxfp4" else _block_fp8(fields)


def _block_fp8(fields: HfFields) -> BlockFP8:
    for name, supported in _FP8_VALUES.items():
        if fields.has(name) and fields.hf[name] not in supported:
            raise fields.unsupported(name, f"supported are {', '.join(supported)}")
    sizes = fields.hf.get("weight_block_size")
    if sizes is None:
        raise fields.unsupported("weight_block_size", "only weights with a factor for each block are read")
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise CheckpointError(f"{fields.where}: weight_block_size must be two positive integers, got {sizes!r:.80}")
    return BlockFP8((sizes[0], sizes[1]))
