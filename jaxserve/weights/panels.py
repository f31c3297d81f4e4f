"""Reads a matrix into the panels that native kernels multiply by, straight from the rows that checkpoints store."""

from __future__ import annotations

from math import prod

import numpy as np

from jaxserve.models.rules import WeightRule
from jaxserve.weights.bits import convert
from jaxserve.weights.checkpoint import Block, Tensors, whole
from jaxserve.weights.packing import aligned_zeros, read_rows
from jaxserve.weights.transpose import put_transposed
from pallas_kernels.matmul.packed import BLOCK

_PAIR = np.dtype(np.uint32)
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


def _put(out: Block, rows: Block, column: int, outputs: int) -> None:
    """Put stored rows [X, inputs] into panels; the first of them is the matrix's column `column` of `outputs`."""
    done, inputs = 0, rows.shape[1]
    while done < len(rows):
        panel, within = divmod(column + done, BLOCK)
        width = min(BLOCK, outputs - panel * BLOCK)
        count = min(width - within, len(rows) - done)
        strip = np.ascontiguousarray(convert(rows[done : done + count], out.dtype))
        place = out[panel * BLOCK * inputs :][: width * inputs]
        even = inputs - inputs % (_PAIR.itemsize // out.itemsize)
        words = place[: even * width].view(_PAIR).reshape(-1, width)
        put_transposed(words[:, within : within + count], strip[:, :even].view(_PAIR))
        put_transposed(place[even * width :].reshape(-1, width)[:, within : within + count], strip[:, even:])
        done += count
