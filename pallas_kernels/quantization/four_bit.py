"""Codes of 4 bits with a factor for each output and group of inputs: whole numbers (int4) or the floats of MXFP4 and NVFP4 (fp4).

A code c of a group stands for (numbers[c] - zero) * scale, in float32. Whole numbers are counted from their middle, 8, so that
zeros are needed only where a checkpoint has points of its own. Rounding here is to the nearest: a group's number of the largest
magnitude is code 0 exactly, as in llama.cpp's Q4_0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pallas_kernels.quantization.groups import grouped, ungrouped
from pallas_kernels.quantization.scheme import Axes, Dot, Scheme, outputs_of

Numbers = Literal["int4", "fp4"]
MIDDLE = 8
SMALLEST_GROUP = 32
NUMBERS: Mapping[Numbers, tuple[float, ...]] = MappingProxyType(
    {
        "int4": tuple(float(code - MIDDLE) for code in range(16)),
        "fp4": (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6),
    }
)
"""What the codes stand for."""


@dataclass(frozen=True, slots=True)
class FourBit(Scheme):
    """See above. Codes are uint8; scales are float32 [groups, *outputs] and, with `zeros`, as many zeros: a tuple of either.

    Attributes:
        numbers: what codes stand for.
        group: neighbouring inputs that share a factor, counted over all dimensions that are inputs.
        zeros: whether something is taken away from numbers.
    """

    numbers: Numbers = "int4"
    group: int = 128
    zeros: bool = False
    name: ClassVar[str] = "int4"
    native_only: ClassVar[bool] = True

    def fitted(self, shape: tuple[int, ...], inputs: Axes) -> FourBit | None:
        """With groups halved, to 32 at the least, until they divide the inputs."""
        count, group = prod(shape[axis] for axis in inputs), self.group
        while count % group and group > SMALLEST_GROUP:
            group //= 2
        return None if count % group else replace(self, group=group)

    def value_dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        return jnp.dtype("uint8")

    def scale_shapes(self, shape: tuple[int, ...], inputs: Axes) -> tuple[jax.ShapeDtypeStruct, ...]:
        groups = prod(shape[axis] for axis in inputs) // self.group
        one = jax.ShapeDtypeStruct((groups, *outputs_of(shape, inputs)), jnp.float32)
        return (one, one) if self.zeros else (one,)

    def scale_specs(self, spec: PartitionSpec, inputs: Axes) -> tuple[PartitionSpec, ...]:
        one = PartitionSpec(spec[inputs[0]], *outputs_of(tuple(spec), inputs))  # type: ignore[no-untyped-call]
        return (one, one) if self.zeros else (one,)

    def quantize(self, numbers: Any, inputs: Axes, numpy: Any = jnp) -> tuple[Any, Any]:
        if self.numbers != "int4" or self.zeros:
            raise ValueError("numbers are rounded to int4 without zeros; others are read as they are stored")
        parts = grouped(numpy.asarray(numbers, numpy.float32), inputs, self.group)
        largest, smallest = numpy.max(parts, axis=1), numpy.min(parts, axis=1)
        scales = numpy.where(largest > -smallest, largest, smallest) * numpy.float32(-1 / MIDDLE)
        inverse = numpy.where(scales == 0, numpy.float32(0), 1 / numpy.where(scales == 0, numpy.float32(1), scales))
        codes = numpy.clip(numpy.rint(parts * inverse[:, None]), -MIDDLE, MIDDLE - 1) + MIDDLE
        return ungrouped(codes.astype(numpy.uint8), numbers.shape, inputs), (scales,)

    def dequantize(self, values: jax.Array, scales: Any, inputs: Axes) -> jax.Array:
        parts = grouped(jnp.asarray(NUMBERS[self.numbers], jnp.float32)[values.astype(jnp.int32)], inputs, self.group)
        if self.zeros:
            parts -= scales[1][:, None]
        numbers: jax.Array = ungrouped(parts * scales[0][:, None], values.shape, inputs)
        return numbers

    def product(self, x: jax.Array, values: jax.Array, scales: Any, inputs: Axes, dot: Dot) -> jax.Array:
        return dot(x.astype(jnp.float32), self.dequantize(values, scales, inputs))

    def table(self) -> np.ndarray:
        """float32[16]: what each code stands for."""
        return np.array(NUMBERS[self.numbers], np.float32)
