"""Weights in FP8 (E4M3) with a factor for each output, or for each output and group of inputs, as checkpoints store them.

Activations stay as they are. Every E4M3 number is one of bfloat16, so products are exact; a group's sum is multiplied by its
factor. A factor for a block of outputs and inputs, as DeepSeek-V3 has them, is one for each of the block's outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pallas_kernels.quantization.groups import grouped, ungrouped
from pallas_kernels.quantization.scheme import Axes, Dot, Scheme, outputs_of
from pallas_kernels.round_rows import LARGEST, VALUES

SMALLEST_FACTOR = 2.0**-117  # times the smallest number of E4M3, 2^-9, it is none that CPUs take for 0
TOGETHER = 4  # inputs that lie side by side in panels


@dataclass(frozen=True, slots=True)
class Float8Weight(Scheme):
    """See above. Scales are one float32 array [groups, *outputs].

    Attributes:
        group: neighbouring inputs that share a factor, counted over all dimensions that are inputs; None for all of them.
    """

    group: int | None = None
    name: ClassVar[str] = "fp8_weight"
    native_only: ClassVar[bool] = True

    def fitted(self, shape: tuple[int, ...], inputs: Axes) -> Float8Weight | None:
        """None unless groups divide the inputs, and words of them the groups."""
        if self.group is None:
            return self
        return None if self.group % TOGETHER or prod(shape[axis] for axis in inputs) % self.group else self

    def value_dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        return VALUES

    def scale_shapes(self, shape: tuple[int, ...], inputs: Axes) -> jax.ShapeDtypeStruct:
        groups = prod(shape[axis] for axis in inputs) // self._size(shape, inputs)
        return jax.ShapeDtypeStruct((groups, *outputs_of(shape, inputs)), jnp.float32)

    def scale_specs(self, spec: PartitionSpec, inputs: Axes) -> PartitionSpec:
        return PartitionSpec(None, *outputs_of(tuple(spec), inputs))  # type: ignore[no-untyped-call]

    def quantize(self, numbers: Any, inputs: Axes, numpy: Any = jnp) -> tuple[Any, Any]:
        parts = grouped(numpy.asarray(numbers, numpy.float32), inputs, self._size(numbers.shape, inputs))
        largest = numpy.maximum(numpy.max(parts, axis=1), -numpy.min(parts, axis=1))
        scales = numpy.maximum(largest * numpy.float32(1 / LARGEST), numpy.float32(SMALLEST_FACTOR))
        scaled = numpy.clip(parts / scales[:, None], -LARGEST, LARGEST)
        return ungrouped(scaled.astype(VALUES), numbers.shape, inputs), scales

    def dequantize(self, values: jax.Array, scales: jax.Array, inputs: Axes) -> jax.Array:
        parts = grouped(values.astype(jnp.float32), inputs, self._size(values.shape, inputs))
        numbers: jax.Array = ungrouped(parts * scales[:, None], values.shape, inputs)
        return numbers

    def product(self, x: jax.Array, values: jax.Array, scales: jax.Array, inputs: Axes, dot: Dot) -> jax.Array:
        return dot(x.astype(jnp.float32), self.dequantize(values, scales, inputs))

    def _size(self, shape: tuple[int, ...], inputs: Axes) -> int:
        """Inputs of a group."""
        return self.group or prod(shape[axis] for axis in inputs)
