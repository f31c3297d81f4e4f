"""Reads a matrix into the panels that native kernels multiply by, straight from the rows that checkpoints store."""

from __future__ import annotations

from math import prod

import numpy as np

from jaxserve.models.rules import WeightRule
from jaxserve.weights.bits import convert
from jaxserve.weights.checkpoint import Block, Tensors, whole
from jaxserve.weights.packing import aligned_zeros, read_rows
from jaxserve.weights.transpose import put_transposed
from pallas_kernels.matmul.packed import BLOCK, LEVELS, SMALLEST_SCALE

_WORD = np.dtype(np.uint32)
"""Has the inputs that a panel keeps side by side: stored rows have them side by side, too."""


def read_panels(checkpoint: Tensors, rule: WeightRule, shape: tuple[int, ...], split: int, dtype: str) -> Block:
    """A whole matrix as the `values` of a PackedMatrix of the form "panels": [inputs * outputs].

    Args:
        checkpoint: where the rule's tensors are.
        rule: what the parameter is made from: matrices [out, in], packed in any way for one device.
        shape: the plain parameter's.
        split: how many of its first axes are inputs.
        dtype: name of the wanted dtype, of 16 or 32 bits.

    Returns:
        An array of that dtype; zeros where the parameter is padded.
    """
    inputs, outputs = prod(shape[:split]), prod(shape[split:])
    out = aligned_zeros((inputs * outputs,), np.dtype(dtype))
    column = 0
    for source in rule.sources:
        for first, rows in read_rows(checkpoint, source, whole(source.shape)):
            _put(out, rows, column + first, outputs)
        column += source.shape[0]
    return out


def read_quantized_panels(checkpoint: Tensors, rule: WeightRule, shape: tuple[int, ...], split: int) -> tuple[Block, Block]:
    """A whole matrix in int8, rounded from the stored numbers in float32 as `packed.quantize` rounds.

    Args:
        checkpoint: where the rule's tensors are.
        rule: what the parameter is made from, as for `read_panels`.
        shape: the plain parameter's.
        split: how many of its first axes are inputs.

    Returns:
        The `values` and the `scales` of a PackedMatrix. A scale is not finite if a number of its column is not.
    """
    inputs, outputs = prod(shape[:split]), prod(shape[split:])
    values, scales = aligned_zeros((inputs * outputs,), np.dtype(np.int8)), aligned_zeros((outputs,), np.dtype(np.float32))
    scales[...] = SMALLEST_SCALE  # of padding
    column = 0
    for source in rule.sources:
        for first, rows in read_rows(checkpoint, source, whole(source.shape)):
            for start in range(0, len(rows), BLOCK):  # few enough that what comes between stays in a core's cache
                numbers = convert(rows[start : start + BLOCK], scales.dtype)
                at = column + first + start
                largest = np.maximum(numbers.max(axis=1), -numbers.min(axis=1))
                scale = np.maximum(largest * np.float32(1 / LEVELS), np.float32(SMALLEST_SCALE))
                scales[at : at + len(numbers)] = scale
                _put(values, np.rint(numbers * (1 / scale)[:, None]).astype(np.int8), at, outputs)
        column += source.shape[0]
    return values, scales


def _put(out: Block, rows: Block, column: int, outputs: int) -> None:
    """Put stored rows [X, inputs] into panels; the first of them is the matrix's column `column` of `outputs`."""
    done, inputs = 0, rows.shape[1]
    while done < len(rows):
        panel, within = divmod(column + done, BLOCK)
        width = min(BLOCK, outputs - panel * BLOCK)
        count = min(width - within, len(rows) - done)
        strip = np.ascontiguousarray(convert(rows[done : done + count], out.dtype))
        place = out[panel * BLOCK * inputs :][: width * inputs]
        even = inputs - inputs % (_WORD.itemsize // out.itemsize)
        words = place[: even * width].view(_WORD).reshape(-1, width)
        put_transposed(words[:, within : within + count], strip[:, :even].view(_WORD))
        put_transposed(place[even * width :].reshape(-1, width)[:, within : within + count], strip[:, even:])
        done += count
