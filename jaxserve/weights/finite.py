"""Finds weights that are not numbers, at the speed of memory."""

from __future__ import annotations

import numpy as np

from jaxserve.models.rules import WeightRule
from jaxserve.weights.bits import are_numbers
from jaxserve.weights.checkpoint import Block, whole
from jaxserve.weights.quantized.layout import Dequantized
from jaxserve.weights.tensor_error import TensorError

_STRIP = 2**17  # elements looked at together: few enough to stay in a core's cache, where they are looked at twice


def is_finite(block: Block) -> bool:
    """Whether a contiguous array of float32, float16, bfloat16 or float8_e4m3fn holds numbers only."""
    line = block.reshape(-1)
    return all(are_numbers(line[start : start + _STRIP]) for start in range(0, line.size, _STRIP))


def not_finite_error(tensors: Dequantized, rule: WeightRule, dtype: str) -> TensorError:
    """Why a parameter has something that is not a number: which of its tensors, and where; the file to come is the last one's.

    Args:
        tensors: where the rule's tensors are.
        rule: what the parameter is made from.
        dtype: of the parameter.
    """
    found, last = [], ""
    for name, shape in {source.name: source.stored_shape for source in rule.sources}.items():
        tensor = tensors.read(name, whole(shape)).astype(np.float32)
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(tensor.astype(dtype).astype(np.float32))
        if bad.any():
            last = name
            place = tuple(int(index) for index in np.argwhere(bad)[0])
            value = tensor[place]
            why = "" if not np.isfinite(value) else f", too large for {dtype}"
            found.append(f"{name} has {int(bad.sum())} in {bad.size}, the first at {list(place)}: {value:g}{why}")
    return TensorError(tensors.stored_name(last), f"weights that are NaN or infinite: {'; '.join(found)}")
