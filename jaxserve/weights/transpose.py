"""Transposes matrices at two to three times the speed of numpy's own assignment."""

from __future__ import annotations

import numpy as np

from jaxserve.weights.bits import bits, convert
from jaxserve.weights.checkpoint import Block

_STRIP = 64
"""Rows transposed at a time: few enough that the lines they are written to stay in cache."""
_WORD = np.dtype(np.complex128)
"""16 bytes, the most that numpy copies as one."""


def put_transposed(out: Block, part: Block) -> None:
    """out[...] = part.T, converting the dtype. Of vectors, out[...] = part.

    Elements of neighbouring rows are put side by side into words, while they are in cache; then words are
    transposed, a fraction of as many as there are elements.

    Args:
        out: [columns, rows], elements of a row of it side by side, or of a column, as `part` has them.
        part: [rows, columns].
    """
    line, together = bits(out), _WORD.itemsize // out.itemsize
    packed = len(part) // together * together if out.ndim == 2 and out.strides[1] == out.itemsize else 0
    for row in range(0, packed, _STRIP):
        strip = bits(convert(part[row : min(row + _STRIP, packed)], out.dtype))
        words = np.empty((len(strip) // together, strip.shape[1], together), line.dtype)
        for place in range(together):
            words[:, :, place] = strip[place::together]
        line[:, row : row + len(strip)].view(_WORD)[...] = words.view(_WORD)[:, :, 0].T
    line[..., packed:] = bits(convert(part[packed:], out.dtype)).T
