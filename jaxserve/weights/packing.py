"""Packs the tensors of a rule into the part of the parameter that one device holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from jaxserve.models.rules import Packing, Source, WeightRule
from jaxserve.weights.bits import bits, convert
from jaxserve.weights.checkpoint import Block, Bounds, Tensors, piece
from jaxserve.weights.transpose import put_transposed

Index = tuple[slice, ...]
_ALIGNED = 64  # bytes; what begins there, jax's CPU devices take without a copy


def read_block(
    checkpoint: Tensors, rule: WeightRule, shape: tuple[int, ...], index: Index, dtype: str, order: Sequence[int] | None = None
) -> Block:
    """The block of a packed parameter at an index, reading only what it needs.

    Args:
        checkpoint: where the rule's tensors are.
        rule: what the parameter is made from.
        shape: the whole parameter's shape.
        index: a slice a dimension, as jax.make_array_from_callback gives it.
        dtype: name of the wanted dtype.
        order: of its dimensions in memory; None for their own.

    Returns:
        An array of that dtype, contiguous in that order; zeros where the parameter is padded.
    """
    bounds = tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
    size, places = [stop - start for start, stop in bounds], range(len(shape)) if order is None else order
    out = aligned_zeros([size[axis] for axis in places], np.dtype(dtype)).transpose(np.argsort(places))
    if rule.stack is None:
        _fill(out, checkpoint, rule, shape, bounds)
    else:
        for at, number in enumerate(range(*bounds[0])):
            _fill(out[at], checkpoint, rule.member(number), shape[1:], bounds[1:])
    return out


def _fill(out: Block, checkpoint: Tensors, rule: WeightRule, shape: tuple[int, ...], bounds: Bounds) -> None:
    """Fill the part of a parameter between bounds; `shape` is that of the whole parameter."""
    source = rule.sources[0]
    match rule.packing:
        case Packing.WHOLE:
            for row, part in read_rows(checkpoint, source, _inside(bounds, source.shape)):
                bits(out)[row : row + len(part)] = bits(convert(part, out.dtype))
        case Packing.TRANSPOSED:
            _put_transposed(out, checkpoint, source, _inside(bounds[::-1], source.shape))
        case Packing.ROWS:
            (first, last), (from_row, to_row), outputs = bounds
            for at, shard in enumerate(range(first, last)):
                rows = (shard * shape[1] + from_row, shard * shape[1] + to_row)
                _put_transposed(out[at], checkpoint, source, (outputs, rows))
        case Packing.COLUMNS:
            *inputs, (first, last), _ = bounds
            for at, shard in enumerate(range(first, last)):
                _put_columns(out[..., at, :], checkpoint, rule, tuple(inputs), (shard, shape[-2]))


def _read(checkpoint: Tensors, source: Source, bounds: Bounds) -> Block:
    """The block of a source's matrix or vector between bounds, wherever in its tensor that is."""
    stored, phase = stored_bounds(source, bounds)
    block = checkpoint.read(source.name, stored)
    if source.expert is not None:
        block = block[0]
    if source.depthwise:
        block = block[:, 0]
    return (block.T if source.transposed else block)[phase :: source.row_step]


def stored_bounds(source: Source, bounds: Bounds) -> tuple[Bounds, int]:
    """Where in its tensor a block of a source's matrix or vector is, and which of the rows there is its first.

    Of rows that alternate with another source's, both are in it: so the two read the same block.
    """
    (start, stop), *inputs = bounds
    first, phase = divmod(source.first_row, source.row_step)
    stored = [((first + start) * source.row_step, (first + stop) * source.row_step), *inputs]
    if source.depthwise:
        stored.insert(1, (0, 1))
    if source.transposed:
        stored.reverse()
    if source.expert is not None:
        stored.insert(0, (source.expert, source.expert + 1))
    return tuple(stored), phase


def _put_columns(
    out: Block,
    checkpoint: Tensors,
    rule: WeightRule,
    inputs: Bounds,
    shard: tuple[int, int],
) -> None:
    """Fill out[in, X] of matrices or out[X] of vectors with one shard's columns of every source, side by side."""
    column = 0
    for source in rule.sources:
        rows = source.rows_of(*shard)
        width = rows[1] - rows[0]
        _put_transposed(out[..., column : column + width], checkpoint, source, (rows, *inputs))
        column += width


def _put_transposed(out: Block, checkpoint: Tensors, source: Source, bounds: Bounds) -> None:
    """Fill the first columns of out with a source's rows between bounds, converting the dtype."""
    for first, part in read_rows(checkpoint, source, bounds):
        put_transposed(out[..., first : first + len(part)], part)


def read_rows(checkpoint: Tensors, source: Source, bounds: Bounds) -> Iterator[tuple[int, Block]]:
    """The rows of a source between bounds, a few at a time: how many came before, and the next."""
    (start, stop), *inputs = bounds
    size = (stop - start, *(end - begin for begin, end in inputs))
    rows = max(1, size[0]) if source.transposed else piece(size)[0]  # in the file of a transposed one they are columns
    for row in range(start, stop, rows):
        yield row - start, _read(checkpoint, source, ((row, min(row + rows, stop)), *inputs))


def aligned_zeros(shape: Sequence[int], dtype: np.dtype) -> Block:
    """np.zeros that jax's CPU devices take without a copy."""
    memory = np.zeros(prod(shape) * dtype.itemsize + _ALIGNED, np.uint8)
    first = -memory.ctypes.data % _ALIGNED
    return memory[first : first + memory.size - _ALIGNED].view(dtype).reshape(shape)


def _inside(bounds: Bounds, shape: tuple[int, ...]) -> Bounds:
    """The bounds, cut to a tensor that is shorter than the padded parameter."""
    return tuple((min(start, size), min(stop, size)) for (start, stop), size in zip(bounds, shape, strict=True))
