"""Reads the `quantization_config` of compressed-tensors checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jaxserve.errors import CheckpointError
from jaxserve.models.fields import HfFields
from jaxserve.models.quantization_methods import CompressedTensors, PackFormat, WeightGroup
from jaxserve.patterns import FilePattern, TimeBudget, compile_pattern

KEYS = frozenset(
    {
        "quant_method",
        "config_groups",
        "format",
        "ignore",
        "kv_cache_scheme",
        "quantization_status",
        "global_compression_ratio",
        "version",
        "sparsity_config",
        "transform_config",
    }
)
_EXPRESSION = "re:"
_FORMATS: Mapping[str, PackFormat] = MappingProxyType(
    {
        "float-quantized": "quantized",
        "int-quantized": "quantized",
        "naive-quantized": "quantized",
        "pack-quantized": "pack-quantized",
        "nvfp4-pack-quantized": "nvfp4-pack-quantized",
        "mxfp4-pack-quantized": "mxfp4-pack-quantized",
        "mxfp8-quantized": "mxfp8-quantized",
    }
)
_TYPES: Mapping[PackFormat, tuple[tuple[str, int], ...]] = MappingProxyType(
    {
        "quantized": (("float", 8), ("int", 8)),
        "pack-quantized": (("int", 2), ("int", 4), ("int", 8)),
        "nvfp4-pack-quantized": (("float", 4),),
        "mxfp4-pack-quantized": (("float", 4),),
        "mxfp8-quantized": (("float", 8),),
    }
)
"""Type and bits of the numbers that a format is read with."""


def compressed_tensors(fields: HfFields) -> CompressedTensors:
    """See `quantization_from_hf`. Of `input_activations` only the dtype is read: FP8 or not."""
    for name in ("sparsity_config", "transform_config"):
        table = fields.table(name)
        if table and not (name == "sparsity_config" and table.get("format") == "dense"):
            raise fields.unsupported(name, "only checkpoints without are read")
    if fields.has("quantization_status") and fields.hf["quantization_status"] not in ("compressed", "frozen"):
        raise fields.unsupported("quantization_status", "only compressed weights are read")
    groups = fields.table("config_groups")
    if not groups:
        raise CheckpointError(f"{fields.where} lacks config_groups")
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise CheckpointError(f"{fields.where}: config_groups.{name} must be an object, got {group!r:.80}")
    common = fields.hf.get("format")
    budget = TimeBudget(fields.where)
    return CompressedTensors(
        tuple(_group(HfFields(group, f"{fields.where}, {name}"), common, budget) for name, group in groups.items())
    )


def _group(fields: HfFields, common: object, budget: TimeBudget) -> WeightGroup:
    weights = HfFields(fields.table("weights"), f"{fields.where}, weights")
    if not weights.hf:
        raise fields.unsupported("weights", "a group says how its weights are quantized")
    stored = HfFields({"format": fields.hf.get("format") or common}, fields.where)
    name = stored.hf["format"]
    if not isinstance(name, str) or name not in _FORMATS:
        raise stored.unsupported("format", f"supported are {', '.join(_FORMATS)}")
    numbers, bits = weights.hf.get("type", "int"), weights.integer("num_bits")
    read = _TYPES[_FORMATS[name]]
    if (numbers, bits) not in read:
        known = ", ".join(f"{kind} of {count} bits" for kind, count in read)
        raise weights.unsupported("num_bits", f"{name} is read with {known}, not {numbers!r:.40}")
    targets = fields.strings("targets") or ()
    if not targets:
        raise CheckpointError(f"{fields.where} lacks targets")
    activations = fields.table("input_activations")
    fp8 = activations.get("type") == "float" and activations.get("num_bits") == 8
    return WeightGroup(targets, _FORMATS[name], bits, _block(weights), fp8, _expressions(targets, budget))


def _expressions(targets: Sequence[str], budget: TimeBudget) -> tuple[FilePattern, ...]:
    expressions = [target.removeprefix(_EXPRESSION) for target in targets if target.startswith(_EXPRESSION)]
    return tuple(compile_pattern("targets", one, budget) for one in expressions)


def _block(weights: HfFields) -> tuple[int | None, int | None]:
    """Outputs and inputs that share a factor."""
    strategy = weights.hf.get("strategy") or ("group" if weights.has("group_size") else "tensor")
    match strategy:
        case "tensor":
            return (None, None)
        case "channel":
            return (1, None)
        case "group" | "tensor_group":
            return (1, None if weights.hf.get("group_size") == -1 else weights.integer("group_size"))
        case "block":
            sizes = weights.hf.get("block_structure")
            if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
                raise CheckpointError(f"{weights.where}: block_structure must be two positive integers, got {sizes!r:.80}")
            return (sizes[0], sizes[1])
    raise weights.unsupported("strategy", "supported are tensor, channel, group, tensor_group, block")
