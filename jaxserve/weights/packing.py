"""Packs the tensors of a rule into the part of the parameter that one device holds."""

from __future__ import annotations

import numpy as np

from jaxserve.models.rules import Packing, WeightRule
from jaxserve.weights.safetensors import Block, SafetensorsCheckpoint, read_padded

Index = tuple[slice, ...]


def read_block(checkpoint: SafetensorsCheckpoint, rule: WeightRule, shape: tuple[int, ...], index: Index) -> Block:
    """The block of a packed parameter at an index, reading only what it needs.

    Args:
        checkpoint: where the rule's tensors are.
        rule: what the parameter is made from.
        shape: the whole parameter's shape.
        index: a slice a dimension, as jax.make_array_from_callback gives it.

    Returns:
        A contiguous array in the dtype of the file.
    """
    start_stop = tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
    source = rule.sources[0]
    match rule.packing:
        case Packing.WHOLE:
            block = read_padded(checkpoint, source.name, start_stop, source.shape)
        case Packing.TRANSPOSED:
            block = read_padded(checkpoint, source.name, start_stop[::-1], source.shape).T
        case Packing.ROWS:
            (first, last), (from_row, to_row), outputs = start_stop
            base = [shard * shape[1] for shard in range(first, last)]
            rows = [checkpoint.read(source.name, (outputs, (at + from_row, at + to_row))).T for at in base]
            block = _stack(rows, axis=0)
        case Packing.COLUMNS:
            inputs, (first, last) = start_stop[:-2], start_stop[-2]
            parts = [_columns(checkpoint, rule, inputs, shard, shape[-2]) for shard in range(first, last)]
            block = _stack(parts, axis=-2)
    return np.ascontiguousarray(block)


def _columns(
    checkpoint: SafetensorsCheckpoint, rule: WeightRule, inputs: tuple[tuple[int, int], ...], shard: int, shards: int
) -> Block:
    """One shard's columns of every source side by side: [in, X] of matrices, [X] of vectors."""
    parts = []
    for source in rule.sources:
        width = source.shape[0] // shards
        parts.append(checkpoint.read(source.name, ((shard * width, (shard + 1) * width), *inputs)))
    return np.concatenate(parts).T


def _stack(parts: list[Block], axis: int) -> Block:
    """np.stack that does not copy a lone part."""
    return np.expand_dims(parts[0], axis) if len(parts) == 1 else np.stack(parts, axis)
