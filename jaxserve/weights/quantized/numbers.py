"""From stored bits to numbers: words and bytes that hold several, and what multiplies them."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxserve.weights.bits import bits, convert
from jaxserve.weights.checkpoint import Block

Indices = npt.NDArray[np.intp]
FP8 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)  # 4 times faster than astype
FP4 = np.array((0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6), np.float32)
INT8 = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)
UNSIGNED = np.arange(256, dtype=np.float32)
"""What the bits of a number stand for."""
_STRIP = 2**18  # numbers that are in float32 at a time


class Factors(NamedTuple):
    """What the numbers of a block [O, I] are multiplied by.

    Attributes:
        scales: float32 [groups of O, groups of I].
        zeros: likewise, taken away before; None for none.
        rows: the group of each output.
        columns: the group of each input.
    """

    scales: Block
    zeros: Block | None
    rows: Indices
    columns: Indices


class Coded(NamedTuple):
    """A block [O, I] as it is stored.

    Attributes:
        codes: uint8, or the bits of int8 and FP8.
        meaning: the number that each code stands for.
    """

    codes: npt.NDArray[np.uint8]
    meaning: Block
    factors: Factors

    def every(self, step: int, first: int) -> Coded:
        """One output of every `step`, from the first on."""
        outputs = slice(first, None, step)
        return self._replace(codes=self.codes[outputs], factors=self.factors._replace(rows=self.factors.rows[outputs]))

    def dequantized(self, dtype: str) -> Block:
        return dequantize(self.codes, self.meaning, self.factors, dtype)


def unpack(packed: Block, count: int) -> npt.NDArray[np.uint8]:
    """The whole numbers of `count` bits (2, 4 or 8) in words or bytes [..., W], the lowest bits first."""
    octets = np.ascontiguousarray(packed).view(np.uint8)
    parts = [octets >> np.uint8(shift) & np.uint8(2**count - 1) for shift in range(0, 8, count)]
    return np.stack(parts, axis=-1).reshape(*octets.shape[:-1], -1)


def dequantize(codes: npt.NDArray[np.uint8], meaning: Block, factors: Factors, dtype: str) -> Block:
    """(number - zero) * scale in float32, rounded once to `dtype`; the number is what `meaning` has for a code of [O, I]."""
    out = np.empty(codes.shape, dtype)
    together = max(1, _STRIP // max(1, codes.shape[1]))
    for first in range(0, len(codes), together):
        part = slice(first, first + together)
        numbers = np.take(meaning, codes[part], mode="clip")  # none is out of bounds; other modes are slower
        if factors.zeros is not None:
            numbers -= _each(factors.zeros, factors, part)
        numbers *= _each(factors.scales, factors, part)
        bits(out)[part] = bits(convert(numbers, out.dtype))
    return out


def _each(grid: Block, factors: Factors, part: slice) -> Block:
    """For each number of some rows; [rows, 1] where all inputs have the same."""
    rows: Block = grid[factors.rows[part]]
    if grid.shape[1] == 1:
        return rows
    each: Block = np.take(rows, factors.columns, axis=1)
    return each
