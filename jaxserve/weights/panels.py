"""Reads a matrix into the panels that native kernels multiply by, straight from the rows that checkpoints store."""

from __future__ import annotations

import jax
import numpy as np

from jaxserve.models.rules import WeightRule
from jaxserve.weights.bits import convert
from jaxserve.weights.checkpoint import Block, Tensors, whole
from jaxserve.weights.packing import aligned_zeros, read_rows
from jaxserve.weights.transpose import put_transposed
from pallas_kernels.matmul import Matrix
from pallas_kernels.matmul.layouts import BLOCK

_WORD = np.dtype(np.uint32)
"""Has the inputs that a panel keeps side by side: stored rows have them side by side, too."""


def read_panels(checkpoint: Tensors, rule: WeightRule, target: Matrix) -> Matrix:
    """A whole matrix, rounded from the stored numbers in float32 if it is rounded.

    Args:
        checkpoint: where the rule's tensors are.
        rule: what the parameter is made from: matrices [out, in], packed in any way for one device.
        target: shapes and dtypes of what is wanted, in panels; of a scheme whose scales are none, or one array [*outputs].

    Returns:
        The target with arrays of the host; zeros where the parameter is padded. A scale is not finite if a number of its output
        is not.
    """
    parts: list[Block] = [aligned_zeros(part.shape, part.dtype) for part in jax.tree.leaves(target)]
    rounds = target.scales is not None
    if rounds:
        parts[1][...] = target.scheme.quantize(np.zeros((1, 1)), (1,), np)[1]
    column = 0
    for source in rule.sources:
        for first, rows in read_rows(checkpoint, source, whole(source.shape)):
            together = BLOCK if rounds else len(rows)  # few enough that what comes between stays in a core's cache
            for start in range(0, len(rows), together):
                strip, at = rows[start : start + together], column + first + start
                if rounds:
                    numbers = convert(strip, parts[1].dtype)
                    strip, parts[1].reshape(-1)[at : at + len(strip)] = target.scheme.quantize(numbers, (1,), np)
                _put(parts[0], strip, at, target.outputs)
        column += source.shape[0]
    read: Matrix = jax.tree.unflatten(jax.tree.structure(target), parts)
    return read


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
