"""int8 with a scale an output: its largest magnitude over 127 (symmetric, as in LLM.int8(), Dettmers et al. 2022).

Values are rounded to the nearest, ties to even. Activations stay as they are: their dtype holds every int8, so that products are
exact, and the scale multiplies the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pallas_kernels.quantization.scheme import Axes, Dot, Scheme, outputs_of

LEVELS = 127  # values are whole, from -127 to 127
SMALLEST_SCALE = 2.0**-126  # CPUs may take smaller numbers of float32 for 0


@dataclass(frozen=True, slots=True)
class Int8(Scheme):
    """See above. Scales are one float32 array [*outputs]."""

    name: ClassVar[str] = "int8"
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float32")  # sums of whole numbers are too large for float16
    widened: ClassVar[bool] = True

    def value_dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        return jnp.dtype("int8")

    def scale_shapes(self, shape: tuple[int, ...], inputs: Axes) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(outputs_of(shape, inputs), jnp.float32)

    def scale_specs(self, spec: PartitionSpec, inputs: Axes) -> PartitionSpec:
        return PartitionSpec(*outputs_of(tuple(spec), inputs))  # type: ignore[no-untyped-call]

    def quantize(self, numbers: Any, inputs: Axes, numpy: Any = jnp) -> tuple[Any, Any]:
        numbers = numpy.asarray(numbers, numpy.float32)
        largest = numpy.maximum(numpy.max(numbers, axis=inputs), -numpy.min(numbers, axis=inputs))
        scales = numpy.maximum(largest * numpy.float32(1 / LEVELS), numpy.float32(SMALLEST_SCALE))
        return numpy.rint(numbers * numpy.expand_dims(1 / scales, inputs)).astype(numpy.int8), scales

    def dequantize(self, values: jax.Array, scales: jax.Array, inputs: Axes) -> jax.Array:
        return values.astype(jnp.float32) * jnp.expand_dims(scales, inputs)

    def product(self, x: jax.Array, values: jax.Array, scales: jax.Array, inputs: Axes, dot: Dot) -> jax.Array:
        return dot(x, values.astype(x.dtype)) * scales[None]
