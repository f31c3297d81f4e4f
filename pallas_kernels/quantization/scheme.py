"""What a scheme says of a matrix: its values, what multiplies them, and how rows are multiplied by both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pallas_kernels.registry import Target

Axes = tuple[int, ...]
"""Dimensions of a matrix that are inputs, whatever their number; the others are outputs."""
Item = TypeVar("Item")


class Factors(NamedTuple):
    """What multiplies the sum over the last dimension of inputs, before the other sums.

    Attributes:
        rows: float32[T, *inputs but the last].
        outputs: float32[*outputs].
    """

    rows: jax.Array
    outputs: jax.Array


class Dot(Protocol):
    """Rows x[T, *inputs] times values of the same dtype: float32[T, *outputs]."""

    def __call__(self, x: jax.Array, values: jax.Array, factors: Factors | None = None) -> jax.Array:
        """With the factors, if there are any; then x may have more rows, which are left out of the result."""
        ...


@dataclass(frozen=True, slots=True)
class Scheme:
    """How numbers of a matrix are stored; this one leaves them as they are.

    Scales are whatever tree of arrays goes with the values: a factor for each output or group of inputs, zero points beside them;
    None for none.

    Attributes:
        name: as users write it.
        dtypes: of the activations that it is exact enough for, by name.
        native_only: whether only kernels of ours read it, on one device, which has the whole matrix: XLA does not multiply by it.
        widened: whether products take its values in the dtype of the activations: XLA makes those of them in registers.
        grouped: whether what is widened has factors for groups of inputs.
        capability: CUDA compute capability from which on GPUs multiply by it; None for all.
        logits: whether it is fine enough for the matrix that logits are made with.
    """

    name: ClassVar[str] = "none"
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float16", "float32")
    native_only: ClassVar[bool] = False
    widened: ClassVar[bool] = False
    grouped: ClassVar[bool] = False
    capability: ClassVar[tuple[int, int] | None] = None
    logits: ClassVar[bool] = True

    def fitted(self, shape: tuple[int, ...], inputs: Axes) -> Scheme | None:
        """The scheme for a parameter of this shape; None for one that is left as it is."""
        return self

    def on(self, target: Target) -> Scheme:
        """The scheme for products on a device."""
        return self

    def value_dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        """The dtype of the values of a matrix that had this one."""
        return dtype

    def scale_shapes(self, shape: tuple[int, ...], inputs: Axes) -> Any:
        """The scales of a matrix of this shape, a jax.ShapeDtypeStruct at every leaf."""

    def scale_specs(self, spec: PartitionSpec, inputs: Axes) -> Any:
        """How the scales are divided over devices where the values are divided by `spec`."""

    def quantize(self, numbers: Any, inputs: Axes, numpy: Any = jnp) -> tuple[Any, Any]:
        """The values, in the shape of the numbers, and the scales; `numpy` is jax's or numpy itself.

        A scale is not finite if one of its numbers is not.
        """
        return numbers, None

    def dequantize(self, values: jax.Array, scales: Any, inputs: Axes) -> jax.Array:
        """The numbers again, as near as the scheme has them."""
        return values

    def rows(self, x: jax.Array) -> jax.Array:
        """What the numbers are multiplied by, of rows x[T, *inputs]: x, or what the scheme's own rounding leaves of it."""
        return x

    def product(self, x: jax.Array, values: jax.Array, scales: Any, inputs: Axes, dot: Dot) -> jax.Array:
        """x[T, *inputs] times the numbers: float32[T, *outputs]. What is done to x (its own rounding) is done here, too."""
        return dot(x, values)


def outputs_of(items: Sequence[Item], inputs: Axes) -> tuple[Item, ...]:
    """What belongs to outputs, of an item for each dimension."""
    return tuple(item for axis, item in enumerate(items) if axis not in inputs)
