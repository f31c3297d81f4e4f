"""Matrices in the forms that native kernels read.

A product with few rows takes as long as reading the matrix. XLA's CPU dots copy a matrix into another order at every call; here
that is done once, when the weights are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, Literal

import jax
import jax.numpy as jnp

BLOCK = 64  # columns of a panel; native_kernels.h has it too

LEVELS = 127  # quantized numbers are whole, from -127 to 127
SMALLEST_SCALE = 2.0**-126  # CPUs may take smaller numbers of float32 for 0

Form = Literal["panels", "rows"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix for native kernels: a leaf of the model's parameters, as it were. Unless quantized it takes the plain one's bytes.

    Attributes:
        values: all elements. "panels": [inputs * outputs], blocks of `BLOCK` outputs one after the other, the last perhaps
            narrower. A block of float32 is [inputs, outputs]; of 16 bits [inputs / 2, outputs, 2], pairs of inputs side by side,
            then the last input of an odd number; of int8 [inputs / 4, outputs, 4], then what is left, [inputs % 4, outputs].
            "rows": `shape`, nothing moved.
        shape: of the plain parameter.
        split: "panels": how many of its first axes are inputs, the others being outputs; "rows": how many are outputs.
        form: how `values` are arranged.
        used_rows: int32 scalar, how many rows of x are multiplied, the first ones; the others of the product are 0. None for all.
            A program that pads its rows gives it to the matrices that it multiplies by (`counted`); none is held with it.
        scales: float32[outputs] of a quantized matrix, whose `values` are int8: a column's numbers are its values times its
            scale. None for others. Only panels are quantized.
    """

    values: jax.Array
    shape: tuple[int, ...] = field(metadata={"static": True})
    split: int = field(metadata={"static": True})
    form: Form = field(metadata={"static": True})
    used_rows: jax.Array | None = None
    scales: jax.Array | None = None

    @property
    def dtype(self) -> jnp.dtype:
        """Of the elements."""
        return self.values.dtype

    @property
    def inputs(self) -> int:
        """Numbers that a row of x has."""
        return prod(self.shape[: self.split] if self.form == "panels" else self.shape[self.split :])

    @property
    def outputs(self) -> int:
        """Numbers that a row of the product has."""
        return prod(self.shape[self.split :] if self.form == "panels" else self.shape[: self.split])

    def plain(self) -> jax.Array:
        """The parameter in its own shape; of panels a copy, of a quantized one in float32."""
        if self.form == "rows":
            return self.values
        matrix = self.columns()
        return (matrix if self.scales is None else matrix.astype(jnp.float32) * self.scales[None]).reshape(self.shape)

    def columns(self) -> jax.Array:
        """The values of panels as [inputs, outputs], without scales."""
        return _unpack(self.values, self.inputs, self.outputs)


def pack(parameter: jax.Array, split: int, form: Form) -> PackedMatrix:
    """Pack a parameter; `split` and `form` as in PackedMatrix. The result is on the parameter's devices."""
    if form == "rows":
        return PackedMatrix(parameter, parameter.shape, split, form)
    return PackedMatrix(_pack(parameter, split), parameter.shape, split, form)


def quantize(parameter: jax.Array, split: int) -> PackedMatrix:
    """Pack a parameter of a float dtype into panels of int8, each column rounded to 127 steps of its largest number.

    The scale of a column is its largest magnitude over 127 (symmetric, as in LLM.int8(), Dettmers et al. 2022, but by column);
    values are rounded to the nearest, ties to even.
    """
    values, scales = _quantize(parameter, split)
    return PackedMatrix(values, parameter.shape, split, "panels", scales=scales)


def counted(tree: Any, rows: jax.Array) -> Any:
    """The same tree, in which every packed matrix is multiplied by the first `rows` rows of x alone; rows is an int32 scalar."""
    return jax.tree.map(
        lambda leaf: replace(leaf, used_rows=rows) if isinstance(leaf, PackedMatrix) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, PackedMatrix),
    )


def packed_shape(parameter: Any, split: int, form: Form, sharding: Any) -> PackedMatrix:
    """What `pack` makes of a parameter of which only shape and dtype are known: the same with a jax.ShapeDtypeStruct."""
    shape = parameter.shape if form == "rows" else (prod(parameter.shape),)
    values: Any = jax.ShapeDtypeStruct(shape, parameter.dtype, sharding=sharding)
    return PackedMatrix(values, parameter.shape, split, form)


def quantized_shape(parameter: Any, split: int, sharding: Any) -> PackedMatrix:
    """What `quantize` makes of a parameter of which only the shape is known: the same with two of jax.ShapeDtypeStruct."""
    values: Any = jax.ShapeDtypeStruct((prod(parameter.shape),), jnp.int8, sharding=sharding)
    scales: Any = jax.ShapeDtypeStruct((prod(parameter.shape[split:]),), jnp.float32, sharding=sharding)
    return PackedMatrix(values, parameter.shape, split, "panels", scales=scales)


@partial(jax.jit, static_argnames="split")
def _quantize(parameter: jax.Array, split: int) -> tuple[jax.Array, jax.Array]:
    """Values of panels, and scales."""
    matrix = parameter.reshape(prod(parameter.shape[:split]), -1).astype(jnp.float32)
    scales = jnp.maximum(jnp.max(jnp.abs(matrix), axis=0) * (1 / LEVELS), SMALLEST_SCALE)
    return _pack(jnp.rint(matrix * (1 / scales)[None]).astype(jnp.int8), 1), scales


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
