"""Where trainers have A and B of a projection: beside its kernel, and shaped by it.

A trainer's kernel is an array with axes for inputs, for outputs, and perhaps for what is stacked in it: layers, or the parts of a
fused projection. A has its axes of inputs, then the rank; B has the rank, then its axes of outputs. What is stacked is in B, at
its place among them, and in A, too, unless all of it shares one A. So qwix, which Tunix trains with, and MaxText have it, and the
table of views that says how a kernel becomes a checkpoint's tensor says how A and B do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from jaxserve.errors import CheckpointError
from jaxserve.weights.checkpoint import Block
from jaxserve.weights.live.views import At, Halves, Permute, Reshape, Times, View

Side = Literal["a", "b"]


@dataclass(frozen=True, slots=True)
class _Axes:
    """What a view makes of a kernel's axes.

    Attributes:
        inputs, outputs: which they are, in the order in which the tensor has them.
        taken: of which one entry is taken: which.
        halved: of which the even places come first.
        factor: of the tensor.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    taken: Mapping[int, int]
    halved: frozenset[int]
    factor: float


class LoraView:
    """A or B of one projection, as an array of a tree.

    Attributes:
        shape: that the array must have.
        matrix_shape: of A as [r, in], or B as [out, r].

    Args:
        view: of the projection's own tensor [out, in].
        rank: of the adapter.
        ndim: of the array, which tells whether what is stacked shares one A.

    Raises CheckpointError for a view that has no A and B beside it.
    """

    def __init__(self, view: View, side: Side, rank: int, ndim: int) -> None:
        axes = _axes(view)
        self._side, self._axes = side, axes
        self._kept = axes.inputs if side == "a" else axes.outputs
        stacked = side == "b" or ndim > len(axes.inputs) + 1
        self._here = sorted((*self._kept, *(axes.taken if stacked else ())))
        sizes = tuple(view.shape[axis] for axis in self._here)
        self.shape = (*sizes, rank) if side == "a" else (rank, *sizes)
        size = prod(view.shape[axis] for axis in self._kept)
        self.matrix_shape = (rank, size) if side == "a" else (size, rank)

    def matrix(self, array: Block) -> Block:
        """The matrix that an array has."""
        block = np.moveaxis(array, -1, 0) if self._side == "a" else array
        taken = [self._axes.taken.get(axis, slice(None)) for axis in self._here]
        block = block[(slice(None), *taken)]
        left = sorted(self._kept)
        for axis in self._axes.halved.intersection(left):
            places = np.arange(block.shape[1 + left.index(axis)])
            block = np.take(block, np.concatenate([places[::2], places[1::2]]), axis=1 + left.index(axis))
        block = block.transpose(0, *(1 + left.index(axis) for axis in self._kept)).reshape(len(block), -1)
        if self._side == "a":
            return block
        return block.T if self._axes.factor == 1.0 else block.T.astype(np.float32) * np.float32(self._axes.factor)


def _axes(view: View) -> _Axes:
    """Follows the axes of an array through the steps that make a matrix of it."""
    groups: list[tuple[int, ...]] = [(axis,) for axis in range(len(view.shape))]
    taken: dict[int, int] = {}
    halved: set[int] = set()
    factor, numbers = 1.0, iter(view.at)
    for step in view.steps:
        match step:
            case At(axis):
                (gone,) = groups.pop(axis)
                taken[gone] = next(numbers)
            case Permute(order):
                groups = [groups[axis] for axis in order]
            case Reshape(shape):
                groups = _merged(view, groups, shape)
            case Halves() if len(groups[-1]) == 1:
                halved.update(groups[-1])
            case Times(by):
                factor *= by
            case _:
                raise _unfit(view)
    if len(groups) != 2:
        raise _unfit(view)
    return _Axes(inputs=groups[1], outputs=groups[0], taken=taken, halved=frozenset(halved), factor=factor)


def _merged(view: View, groups: list[tuple[int, ...]], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Axes as a reshaped array has them: neighbours that became one."""
    merged, left = [], list(groups)
    for size in shape:
        together: tuple[int, ...] = ()
        while left and (not together or prod(view.shape[axis] for axis in together) < size):
            together += left.pop(0)
        if prod(view.shape[axis] for axis in together) != size:
            raise _unfit(view)
        merged.append(together)
    if left:
        raise _unfit(view)
    return merged


def _unfit(view: View) -> CheckpointError:
    return CheckpointError(f"params: {view.name} is not a kernel that LoRA can be read beside", param="mapping")
