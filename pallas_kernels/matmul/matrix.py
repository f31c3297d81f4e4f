"""A weight matrix as kernels take it: numbers of a scheme in a layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pallas_kernels.matmul.layouts import Layout
from pallas_kernels.quantization import Axes, Scheme, outputs_of


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of products, or a stack of matrices of one kind: a leaf of the model's parameters, as it were.

    Attributes:
        values: of the scheme, as the layout has them; under shard_map, what the device has of them.
        scales: the scheme's.
        layout: how the values are arranged.
        scheme: how the numbers are rounded.
        used_rows: int32 scalar, how many rows of x are multiplied, the first ones; the others of the product are 0. None for all.
            A program that pads its rows gives it to the matrices that it multiplies by (`counted`); none is held with it.
        stacked: whether all arrays have a first dimension of one matrix after the other (`grouped_matmul` multiplies by them);
            layout and scheme are those of one. Only layouts that kernels of ours read are stacked.
    """

    values: jax.Array
    scales: Any
    layout: Layout = field(metadata={"static": True})
    scheme: Scheme = field(metadata={"static": True})
    used_rows: jax.Array | None = None
    stacked: bool = field(default=False, metadata={"static": True})

    @property
    def dtype(self) -> jnp.dtype:
        """Of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the parameter."""
        return (*self.values.shape[:1], *self._one) if self.stacked else self._one

    @property
    def inputs(self) -> int:
        """Numbers that a row of x has."""
        return prod(self._one[axis] for axis in self.layout.inputs)

    @property
    def outputs(self) -> int:
        """Numbers that a row of the product has."""
        return prod(outputs_of(self._one, self.layout.inputs))

    @property
    def _one(self) -> tuple[int, ...]:
        """The shape of one matrix."""
        return self.layout.restored_shape(self.values.shape[1:] if self.stacked else self.values.shape)

    def plain(self) -> jax.Array:
        """The parameter in its own shape, or what rounding left of it."""
        if self.stacked:
            each: jax.Array = jax.vmap(self._plain)(self.values, self.scales)
            return each
        return self._plain(self.values, self.scales)

    def _plain(self, values: jax.Array, scales: Any) -> jax.Array:
        return self.scheme.dequantize(self.layout.restore(values), scales, self.layout.inputs)

    def take(self, rows: jax.Array) -> jax.Array:
        """Rows [T] of the parameter's first dimension: [T, ...]; numbers of none take the last."""
        return self.plain().at[rows].get(mode="clip")

    def elementwise_dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        """In what products pass to a few operations before the next product, of rows of `dtype`, if either would do.

        XLA's CPU code takes half as long where it need not round after each.
        """
        return jnp.dtype("float32") if self.layout.native else dtype

    def specs(self, spec: PartitionSpec) -> Matrix:
        """How the parts are divided where the parameter is divided by `spec`, in a tree of the same structure."""
        if self.layout.native or self.stacked:  # on one device
            whole: Matrix = jax.tree.map(lambda _: PartitionSpec(), self)
            return whole
        parts: dict[str, Any] = {
            "values": self.layout.arranged_spec(spec),
            "scales": self.scheme.scale_specs(spec, self.layout.inputs),
        }
        return replace(self, **parts)


Weight = jax.Array | Matrix
"""A parameter as it is held: an array if it is neither rounded nor arranged for a kernel."""


def as_matrix(weight: Weight, inputs: Axes = (0,)) -> Matrix:
    """The matrix that a parameter is, whose dimensions `inputs` are inputs."""
    return weight if isinstance(weight, Matrix) else Matrix(weight, None, Layout(inputs), Scheme())


def pack(parameter: jax.Array, layout: Layout, scheme: Scheme = Scheme(), *, stacked: bool = False) -> Matrix:  # noqa: B008 - it has no state
    """Round a parameter and arrange it; the result is on the parameter's devices, and the parameter itself if nothing changes.

    `stacked`: the parameter is one matrix after the other, layout and scheme are those of one.
    """
    if stacked:
        each: tuple[jax.Array, Any] = jax.vmap(partial(_parts, layout=layout, scheme=scheme))(parameter)
        return Matrix(*each, layout, scheme, stacked=True)
    return Matrix(*_parts(parameter, layout, scheme), layout, scheme)


def _parts(parameter: jax.Array, layout: Layout, scheme: Scheme) -> tuple[jax.Array, Any]:
    """Of one matrix: values as they are arranged, and scales."""
    values, scales = (parameter, None) if scheme == Scheme() else _quantize(parameter, layout.inputs, scheme)
    return layout.arrange(values), scales


@partial(jax.jit, static_argnames=("inputs", "scheme"))
def _quantize(parameter: jax.Array, inputs: Axes, scheme: Scheme) -> tuple[jax.Array, Any]:
    return scheme.quantize(parameter, inputs)


def packed_shape(parameter: Any, layout: Layout, scheme: Scheme = Scheme(), *, stacked: bool = False) -> Matrix:  # noqa: B008
    """What `pack` makes of a parameter of which only shape and dtype are known: with a jax.ShapeDtypeStruct at every leaf."""
    shape = parameter.shape[1:] if stacked else parameter.shape
    values: Any = jax.ShapeDtypeStruct(layout.arranged_shape(shape), layout.arranged_dtype(scheme.value_dtype(parameter.dtype)))
    one = Matrix(values, scheme.scale_shapes(shape, layout.inputs), layout, scheme, stacked=stacked)
    if not stacked:
        return one
    several: Matrix = jax.tree.map(lambda part: jax.ShapeDtypeStruct((parameter.shape[0], *part.shape), part.dtype), one)
    return several


def counted(tree: Any, rows: jax.Array) -> Any:
    """The same tree; matrices whose kernels skip padding are multiplied by the first `rows` rows of x alone, an int32 scalar."""
    return jax.tree.map(lambda leaf: replace(leaf, used_rows=rows) if skips_padding(leaf) else leaf, tree, is_leaf=skips_padding)


def skips_padding(leaf: Any) -> bool:
    """Whether a leaf of the parameters is a matrix whose kernels do."""
    return isinstance(leaf, Matrix) and leaf.layout.native and not leaf.stacked
