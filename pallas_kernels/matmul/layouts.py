"""How the values of a matrix lie in memory for the kernels that read them, whatever their numbers are.

A product with few rows takes as long as reading the matrix. XLA's CPU dots copy a matrix into another order at every call; native
kernels read panels, which are made once, when the weights are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pallas_kernels.quantization import Axes, outputs_of

BLOCK = 64  # columns of a panel; native_kernels.h has it too


@dataclass(frozen=True, slots=True)
class Layout:
    """An arrangement of the values of a parameter; this one moves nothing: XLA multiplies by it, and may divide it over devices.

    Attributes:
        inputs: dimensions of the parameter that are inputs.
        name: what implementations are chosen by.
        native: whether native kernels for CPUs read it: one device has the whole matrix.
    """

    inputs: Axes
    name: ClassVar[str] = "plain"
    native: ClassVar[bool] = False

    def arranged_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the values of a parameter of this shape."""
        return shape

    def restored_shape(self, arranged: tuple[int, ...]) -> tuple[int, ...]:
        """The inverse."""
        return arranged

    def arranged_dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        """Of values of this dtype."""
        return dtype

    def arrange(self, values: jax.Array) -> jax.Array:
        """Values in the parameter's shape as the layout has them."""
        return values

    def restore(self, values: jax.Array) -> jax.Array:
        """The inverse."""
        return values

    def arranged_spec(self, spec: PartitionSpec) -> PartitionSpec:
        """How values are divided over devices where the parameter is divided by `spec`."""
        return spec

    def order(self, rank: int) -> tuple[int, ...]:
        """The dimensions of a parameter of so many, in the order that its values lie in."""
        return tuple(range(rank))


@dataclass(frozen=True, slots=True)
class OutputsFirst(Layout):
    """Outputs are the first dimensions and inputs the last: as cuBLASLt's product in FP8 reads a matrix, which else is written
    again at every call.
    """

    name: ClassVar[str] = "outputs first"

    def arranged_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(shape[axis] for axis in self.order(len(shape)))

    def restored_shape(self, arranged: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(arranged[place] for place in self._places(len(arranged)))

    def arrange(self, values: jax.Array) -> jax.Array:
        return values.transpose(self.order(values.ndim))

    def restore(self, values: jax.Array) -> jax.Array:
        return values.transpose(self._places(values.ndim))

    def arranged_spec(self, spec: PartitionSpec) -> PartitionSpec:
        return PartitionSpec(*(spec[axis] for axis in self.order(len(spec))))  # type: ignore[no-untyped-call]

    def order(self, rank: int) -> tuple[int, ...]:
        return (*outputs_of(range(rank), self.inputs), *self.inputs)

    def _places(self, rank: int) -> tuple[int, ...]:
        """Where each dimension of the parameter is."""
        order = self.order(rank)
        return tuple(order.index(axis) for axis in range(rank))


@dataclass(frozen=True, slots=True)
class Rows(Layout):
    """Nothing moved, for native kernels: the inputs are the last dimensions, so that an output's lie side by side."""

    name: ClassVar[str] = "rows"
    native: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Panels(Layout):
    """Values [inputs * outputs] in blocks of `BLOCK` outputs one after the other, the last perhaps narrower.

    A block of float32 is [inputs, outputs]; of 16 bits [inputs / 2, outputs, 2], pairs of inputs side by side, then the last
    input of an odd number; of 8 bits [inputs / 4, outputs, 4], then what is left, [inputs % 4, outputs].

    Attributes:
        shape: of the parameter, whose first dimensions are inputs.
    """

    shape: tuple[int, ...]
    name: ClassVar[str] = "panels"
    native: ClassVar[bool] = True

    def arranged_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (prod(shape),)

    def restored_shape(self, arranged: tuple[int, ...]) -> tuple[int, ...]:
        return self.shape

    def arrange(self, values: jax.Array) -> jax.Array:
        arranged: jax.Array = _pack(values, len(self.inputs))
        return arranged

    def restore(self, values: jax.Array) -> jax.Array:
        split = len(self.inputs)
        return _unpack(values, prod(self.shape[:split]), prod(self.shape[split:])).reshape(self.shape)


CODES = 8  # of 4 bits in a word


@dataclass(frozen=True, slots=True)
class CodePanels(Layout):
    """Codes of 4 bits, eight neighbouring inputs in a word of 32 bits, the first in its lowest ones; words lie in panels.

    Attributes:
        shape: of the parameter, whose first dimensions are inputs, a multiple of 8 in all.
    """

    shape: tuple[int, ...]
    name: ClassVar[str] = "code panels"
    native: ClassVar[bool] = True

    def arranged_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (prod(shape) // CODES,)

    def restored_shape(self, arranged: tuple[int, ...]) -> tuple[int, ...]:
        return self.shape

    def arranged_dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        return jnp.dtype("uint32")

    def arrange(self, values: jax.Array) -> jax.Array:
        split = len(self.inputs)
        codes = values.reshape(prod(self.shape[:split]) // CODES, CODES, -1).astype(jnp.uint32)
        words = jnp.bitwise_or.reduce(codes << _places()[None, :, None], axis=1)
        arranged: jax.Array = _pack(words, 1)
        return arranged

    def restore(self, values: jax.Array) -> jax.Array:
        split = len(self.inputs)
        words = _unpack(values, prod(self.shape[:split]) // CODES, prod(self.shape[split:]))
        return (words[:, None] >> _places()[None, :, None] & 15).astype(jnp.uint8).reshape(self.shape)


def _places() -> jax.Array:
    """Where the codes of a word begin."""
    return jnp.arange(0, 4 * CODES, 4, dtype=jnp.uint32)


@partial(jax.jit, static_argnames="split")
def _pack(parameter: jax.Array, split: int) -> jax.Array:
    matrix = parameter.reshape(prod(parameter.shape[:split]), -1)
    outputs = matrix.shape[1]
    whole = outputs - outputs % BLOCK
    parts = [_panels(matrix[:, :whole], BLOCK)] if whole else []
    if whole < outputs:
        parts.append(_panels(matrix[:, whole:], outputs - whole))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _panels(matrix: jax.Array, width: int) -> jax.Array:
    """Panels of one width, all elements in a line."""
    inputs, outputs = matrix.shape
    group = _inputs_together(matrix.dtype)
    even = inputs - inputs % group
    blocks = outputs // width
    lines = matrix[:even].reshape(even // group, group, blocks, width).transpose(2, 0, 3, 1).reshape(blocks, even * width)
    if even < inputs:
        rest = matrix[even:].reshape(inputs - even, blocks, width).transpose(1, 0, 2).reshape(blocks, -1)
        lines = jnp.concatenate([lines, rest], axis=1)
    return lines.reshape(-1)


def _unpack(values: jax.Array, inputs: int, outputs: int) -> jax.Array:
    whole = outputs - outputs % BLOCK
    parts = [_from_panels(values[: inputs * whole], inputs, BLOCK)] if whole else []
    if whole < outputs:
        parts.append(_from_panels(values[inputs * whole :], inputs, outputs - whole))
    return jnp.concatenate(parts, axis=1)


def _from_panels(values: jax.Array, inputs: int, width: int) -> jax.Array:
    group = _inputs_together(values.dtype)
    even = inputs - inputs % group
    lines = values.reshape(-1, inputs * width)
    blocks = lines.shape[0]
    matrix = lines[:, : even * width].reshape(blocks, even // group, width, group).transpose(1, 3, 0, 2)
    outputs = blocks * width
    rest = lines[:, even * width :].reshape(blocks, inputs - even, width).transpose(1, 0, 2)
    return jnp.concatenate([matrix.reshape(even, outputs), rest.reshape(inputs - even, outputs)])


def _inputs_together(dtype: jnp.dtype) -> int:
    """How many inputs a word of 32 bits holds."""
    return 4 // dtype.itemsize
