"""Reads a matrix as kernels multiply by it, panels or words, straight from the rows that checkpoints store."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np

from jaxserve.models.rules import Packing, Source, WeightRule
from jaxserve.weights.bits import convert
from jaxserve.weights.checkpoint import Block, Tensors
from jaxserve.weights.packing import aligned_zeros, read_rows, stored_bounds
from jaxserve.weights.quantized.layout import Dequantized
from jaxserve.weights.stored_schemes import as_scheme
from jaxserve.weights.transpose import put_transposed
from pallas_kernels.matmul import CodePanels, Matrix, Words
from pallas_kernels.matmul.layouts import BLOCK
from pallas_kernels.matmul.words import words_of
from pallas_kernels.quantization import Scheme

_WORD = np.dtype(np.uint32)
"""Has the inputs that a panel keeps side by side: stored rows have them side by side, too."""


Parts = tuple[Block, tuple[Block, ...]]
"""Of some rows of a source, as a scheme has them: values [R, inputs], and each array of its scales, [groups, R] or [R]."""


def read_arranged(checkpoint: Tensors, rule: WeightRule, target: Matrix, stored: Dequantized | None = None) -> Matrix:
    """A whole matrix, or a stack of them, rounded from the stored numbers in float32 if it is rounded.

    Args:
        checkpoint: where the rule's tensors are.
        rule: what the parameter is made from: matrices [out, in], packed in any way; in panels for one device.
        target: shapes and dtypes of what is wanted, in panels or words.
        stored: where numbers are had that are in the target's scheme already; None for a matrix that is rounded here, or not.

    Returns:
        The target with arrays of the host; zeros where the parameter is padded. A scale is not finite if a number of its output
        is not.
    """
    parts: list[Block] = [aligned_zeros(part.shape, part.dtype) for part in jax.tree.leaves(target)]
    if target.stacked:
        for number in range(target.shape[0]):
            _read_matrix([part[number] for part in parts], checkpoint, rule.member(number), target, stored)
    else:
        _read_matrix(parts, checkpoint, rule, target, stored)
    read: Matrix = jax.tree.unflatten(jax.tree.structure(target), parts)
    return read


def _read_matrix(parts: list[Block], checkpoint: Tensors, rule: WeightRule, target: Matrix, stored: Dequantized | None) -> None:
    """Fill the arrays of one matrix, zeros so far: its values, and each of its scales."""
    if target.scales is not None and stored is None:
        for part, scales in zip(
            parts[1:], jax.tree.leaves(_rounded(np.zeros((1, target.inputs)), target.scheme)[1]), strict=True
        ):
            part[...] = scales.reshape(-1, *[1] * (part.ndim - 1))
    for source, rows, column in _placed(rule, target):
        for first, (values, scales) in _strips(checkpoint, source, rows, target, stored):
            at, count = column + first, len(values)
            for part, strip in zip(parts[1:], scales, strict=True):
                part.reshape(-1, target.outputs)[:, at : at + count] = strip.reshape(-1, count)
            if isinstance(target.layout, Words):
                parts[0][:, at : at + count] = words_of(values, target.layout.bits)
            else:
                _put(parts[0], _words(values) if isinstance(target.layout, CodePanels) else values, at, target.outputs)


def _placed(rule: WeightRule, target: Matrix) -> Iterator[tuple[Source, tuple[int, int], int]]:
    """Which rows of a source follow one another as outputs, and the first one's place: a part of every source for each shard."""
    shards = target.shape[-2] if rule.packing is Packing.COLUMNS else 1
    column = 0
    for shard in range(shards):
        for source in rule.sources:
            rows = source.rows_of(shard, shards)
            yield source, rows, column
            column += rows[1] - rows[0]


def _strips(
    checkpoint: Tensors, source: Source, rows: tuple[int, int], target: Matrix, stored: Dequantized | None
) -> Iterator[tuple[int, Parts]]:
    """A source's rows, a few at a time: how many came before, and the next."""
    (start, stop), inputs = rows, (0, source.shape[1])
    if stored is not None:
        for row in range(start, stop, BLOCK):
            bounds, phase = stored_bounds(source, ((row, min(row + BLOCK, stop)), inputs))
            coded = stored.coded(source.name, bounds).every(source.row_step, phase)
            yield row - start, as_scheme(coded, target.scheme)
        return
    for first, read in read_rows(checkpoint, source, (rows, inputs)):
        if target.scales is None:
            yield first, (read, ())
            continue
        for begin in range(0, len(read), BLOCK):  # few enough that what comes between stays in a core's cache
            yield first + begin, _rounded(convert(read[begin : begin + BLOCK], np.dtype(np.float32)), target.scheme)


def _rounded(numbers: Block, scheme: Scheme) -> Parts:
    values, scales = scheme.quantize(numbers, (1,), np)
    return values, tuple(jax.tree.leaves(scales))


def _words(codes: Block) -> Block:
    """Codes of 4 bits [R, inputs] as words uint32[R, inputs / 8]."""
    pairs = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    return np.ascontiguousarray(pairs).view("<u4")


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
