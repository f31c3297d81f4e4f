"""Numbers of a matrix in groups of neighbouring inputs, counted over all of its dimensions that are inputs."""

from __future__ import annotations

from typing import Any

from pallas_kernels.quantization.scheme import Axes, outputs_of


def grouped(numbers: Any, inputs: Axes, group: int) -> Any:
    """[groups, inputs of a group, *outputs], of jax's arrays or numpy's."""
    shape = numbers.shape
    return numbers.transpose(_order(len(shape), inputs)).reshape(-1, group, *outputs_of(shape, inputs))


def ungrouped(numbers: Any, shape: tuple[int, ...], inputs: Axes) -> Any:
    """The inverse, for a matrix of this shape."""
    order = _order(len(shape), inputs)
    back = [order.index(axis) for axis in range(len(shape))]
    return numbers.reshape([shape[axis] for axis in order]).transpose(back)


def _order(rank: int, inputs: Axes) -> tuple[int, ...]:
    return (*inputs, *(axis for axis in range(rank) if axis not in inputs))
