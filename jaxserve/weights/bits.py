"""Elements as the integers that their bits are: numpy copies and compares those many at a time and lets other threads run
meanwhile, where it takes ml_dtypes' numbers one by one and holds the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxserve.weights.checkpoint import Block

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT32 = np.dtype(np.float32)
_STRIP = 2**15  # elements rounded at a time: few enough that what comes between stays in a core's cache
_INFINITIES: Mapping[str, int] = MappingProxyType(
    {"float32": 0x7F80_0000, "float16": 0x7C00, "bfloat16": 0x7F80, "float8_e4m3fn": 0x7F}
)
"""The bits of infinity, and of NaN in FP8, which has none. NaN's are larger, those of every positive number smaller; negative
ones have the highest bit as well."""


def bits(block: Block) -> npt.NDArray[Any]:
    """The same memory as unsigned integers of the same size."""
    return block.view(np.dtype(f"u{block.itemsize}"))


def are_numbers(block: Block) -> bool:
    """Whether an array of float32, float16, bfloat16 or float8_e4m3fn has neither NaN nor infinity."""
    if not block.size:
        return True
    infinity, unsigned = _INFINITIES[block.dtype.name], bits(block)
    # Of signed integers the largest is that of a positive number if there is one, of unsigned ones that of a negative number.
    signed = unsigned.view(np.dtype(f"i{block.itemsize}"))
    return bool(signed.max() < infinity and unsigned.max() < infinity + (1 << 8 * block.itemsize - 1))


def convert(block: Block, dtype: np.dtype) -> Block:
    """`block.astype(dtype, copy=False)`, bit for bit, without the lock between bfloat16 and float32. Not for scalars."""
    if (block.dtype, dtype) == (_BFLOAT16, _FLOAT32):
        return (bits(block).astype(np.uint32) << np.uint32(16)).view(dtype)
    if (block.dtype, dtype) != (_FLOAT32, _BFLOAT16):
        return block.astype(dtype, copy=False)
    out = np.empty(block.shape, np.uint16)
    rows = max(1, _STRIP // max(1, block[:1].size))
    for row in range(0, len(block), rows):
        out[row : row + rows] = _rounded(block[row : row + rows])
    return out.view(dtype)


def _rounded(block: Block) -> Block:
    """The bits of float32 in bfloat16; ties go to even."""
    if not are_numbers(block):  # a NaN's bits are no number to be rounded
        return bits(block.astype(_BFLOAT16))
    wide = bits(block)
    rounded: Block = (wide + (wide >> np.uint32(16) & np.uint32(1)) + np.uint32(0x7FFF)) >> np.uint32(16)
    return rounded
