"""Packs the tensors of a rule into the part of the parameter that one device holds."""

from __future__ import annotations

import numpy as np

from jaxserve.models.rules import Packing, WeightRule
from jaxserve.weights.safetensors import Block, SafetensorsCheckpoint

Index = tuple[slice, ...]
STRIP = 16
"""Rows transposed at a time: few enough that the lines they are written to stay in cache (5 times faster than .T)."""


def read_block(checkpoint: SafetensorsCheckpoint, rule: WeightRule, shape: tuple[int, ...], index: Index, dtype: str) -> Block:
    """The block of a packed parameter at an index, reading only what it needs.

    Args:
        checkpoint: where the rule's tensors are.
        rule: what the parameter is made from.
        shape: the whole parameter's shape.
        index: a slice a dimension, as jax.make_array_from_callback gives it.
        dtype: name of the wanted dtype.

    Returns:
        A contiguous array of that dtype; zeros where the parameter is padded.
    """
    bounds = tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
    out = np.zeros([stop - start for start, stop in bounds], dtype)
    source = rule.sources[0]
    match rule.packing:
        case Packing.WHOLE:
            part = checkpoint.read(source.name, _inside(bounds, source.shape))
            out[: len(part)] = part
        case Packing.TRANSPOSED:
            part = checkpoint.read(source.name, _inside(bounds[::-1], source.shape))
            _put_transposed(out[:, : len(part)], part)
        case Packing.ROWS:
            (first, last), (from_row, to_row), outputs = bounds
            for at, shard in enumerate(range(first, last)):
                rows = (shard * shape[1] + from_row, shard * shape[1] + to_row)
                _put_transposed(out[at], checkpoint.read(source.name, (outputs, rows)))
        case Packing.COLUMNS:
            *inputs, (first, last), _ = bounds
            for at, shard in enumerate(range(first, last)):
                _put_columns(out[..., at, :], checkpoint, rule, tuple(inputs), (shard, shape[-2]))
    return out


def _put_columns(
    out: Block,
    checkpoint: SafetensorsCheckpoint,
    rule: WeightRule,
    inputs: tuple[tuple[int, int], ...],
    shard: tuple[int, int],
) -> None:
    """Fill out[in, X] of matrices or out[X] of vectors with one shard's columns of every source, side by side."""
    column = 0
    for source in rule.sources:
        parts = source.parts(shard[1])
        number, width = shard[0] * parts // shard[1], source.shape[0] // parts
        first = source.first_row + number * width
        part = checkpoint.read(source.name, ((first, first + width), *inputs))
        _put_transposed(out[..., column : column + width], part)
        column += width


def _put_transposed(out: Block, part: Block) -> None:
    """out[...] = part.T, converting the dtype."""
    for row in range(0, len(part), STRIP):
        out[..., row : row + STRIP] = part[row : row + STRIP].T


def _inside(bounds: tuple[tuple[int, int], ...], shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The bounds, cut to a tensor that is shorter than the padded parameter."""
    return tuple((min(start, size), min(stop, size)) for (start, stop), size in zip(bounds, shape, strict=True))
