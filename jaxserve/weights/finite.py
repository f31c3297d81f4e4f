"""Finds weights that are not numbers, at the speed of memory."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxserve.errors import CheckpointError
from jaxserve.models.rules import WeightRule
from jaxserve.weights.checkpoint import Block, Tensors, whole

_STRIP = 2**16  # elements looked at together: few enough to stay in a core's cache
_EXPONENTS: Mapping[str, tuple[type[np.unsignedinteger[Any]], int]] = MappingProxyType(
    {"float32": (np.uint32, 0x7F80_0000), "float16": (np.uint16, 0x7C00), "bfloat16": (np.uint16, 0x7F80)}
)
"""Bits that are all set in NaN and infinity, and in no number."""


def is_finite(block: Block) -> bool:
    """Whether a contiguous array of float32, float16 or bfloat16 holds numbers only.

    Integer operations on the bits: numpy knows bfloat16 one element at a time.
    """
    kind, exponent = _EXPONENTS[block.dtype.name]
    bits = block.reshape(-1).view(kind)
    mask, exponents = kind(exponent), np.empty(min(_STRIP, bits.size), kind)
    for start in range(0, bits.size, _STRIP):
        strip = bits[start : start + _STRIP]
        np.bitwise_and(strip, mask, out=exponents[: strip.size])
        if exponents[: strip.size].max() == mask:
            return False
    return True


def not_finite_error(tensors: Tensors, rule: WeightRule, dtype: str) -> CheckpointError:
    """Why a parameter has something that is not a number: which of its tensors, and where.

    Args:
        tensors: where the rule's tensors are.
        rule: what the parameter is made from.
        dtype: of the parameter.
    """
    found = []
    for name, shape in {source.name: source.stored_shape for source in rule.sources}.items():
        tensor = tensors.read(name, whole(shape)).astype(np.float32)
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(tensor.astype(dtype).astype(np.float32))
        if bad.any():
            place = tuple(int(index) for index in np.argwhere(bad)[0])
            value = tensor[place]
            why = "" if not np.isfinite(value) else f", too large for {dtype}"
            found.append(f"{name} has {int(bad.sum())} in {bad.size}, the first at {list(place)}: {value:g}{why}")
    return CheckpointError(f"weights that are NaN or infinite: {'; '.join(found)}", param="model")
