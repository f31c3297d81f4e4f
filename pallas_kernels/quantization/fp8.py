"""FP8 (E4M3) with a scale an output, and rows rounded to FP8 too, each with a scale of its own, while they are multiplied.

That is compressed-tensors' FP8_DYNAMIC (Micikevicius et al. 2022 for the format): an output's largest weight is 448, the largest
number that there is, and so is a row's largest activation. Products are of both roundings, as tensor cores multiply them; both
scales multiply the sum. Where the inputs are several dimensions the last one's are rounded together, and the others apart: what
lies on different devices is never compared, so that a product's sum stays the one thing that devices exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pallas_kernels.quantization.scheme import Axes, Dot, Scheme, outputs_of

LARGEST = 448  # of E4M3's numbers, the ones without infinities
SMALLEST_SCALE = 2.0**-126  # CPUs may take smaller numbers of float32 for 0
VALUES = jnp.dtype("float8_e4m3fn")


@dataclass(frozen=True, slots=True)
class FP8(Scheme):
    """See above. Scales are one float32 array [*outputs]."""

    name: ClassVar[str] = "fp8"
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float32")  # sums are too large for float16
    capability: ClassVar[tuple[int, int] | None] = (8, 9)
    logits: ClassVar[bool] = False

    def value_dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        return VALUES

    def scale_shapes(self, shape: tuple[int, ...], inputs: Axes) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(outputs_of(shape, inputs), jnp.float32)

    def scale_specs(self, spec: PartitionSpec, inputs: Axes) -> PartitionSpec:
        return PartitionSpec(*outputs_of(tuple(spec), inputs))  # type: ignore[no-untyped-call]

    def quantize(self, numbers: Any, inputs: Axes, numpy: Any = jnp) -> tuple[Any, Any]:
        numbers = numpy.asarray(numbers, numpy.float32)
        largest = numpy.maximum(numpy.max(numbers, axis=inputs), -numpy.min(numbers, axis=inputs))
        scales = numpy.maximum(largest * numpy.float32(1 / LARGEST), numpy.float32(SMALLEST_SCALE))
        return (numbers / numpy.expand_dims(scales, inputs)).astype(VALUES), scales

    def dequantize(self, values: jax.Array, scales: jax.Array, inputs: Axes) -> jax.Array:
        return values.astype(jnp.float32) * jnp.expand_dims(scales, inputs)

    def product(self, x: jax.Array, values: jax.Array, scales: jax.Array, inputs: Axes, dot: Dot) -> jax.Array:
        rounded, steps = round_rows(x)
        return dot(rounded, values, steps) * scales[None]


def round_rows(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """x[T, ..., I] in FP8, and the float32 step [T, ...] of each row's numbers of the last dimension."""
    x = x.astype(jnp.float32)
    steps = jnp.maximum(jnp.max(jnp.abs(x), axis=-1) * (1 / LARGEST), SMALLEST_SCALE)
    return (x / steps[..., None]).astype(VALUES), steps
