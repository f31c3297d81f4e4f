"""FP8 (E4M3) with a scale an output, and rows rounded to FP8 too, each with a scale of its own, while they are multiplied.

That is compressed-tensors' FP8_DYNAMIC (Micikevicius et al. 2022 for the format): an output's largest weight is 448, the largest
number that there is, and so is a row's largest activation. Products are of both roundings, as tensor cores multiply them; both
scales multiply the sum. Where the inputs are several dimensions the last one's are rounded together, and the others apart: what
lies on different devices is never compared, so that a product's sum stays the one thing that devices exchange.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pallas_kernels.quantization.scheme import Axes, Dot, Factors, Scheme, outputs_of
from pallas_kernels.registry import Target
from pallas_kernels.round_rows import LARGEST, SMALLEST_SCALE, VALUES, Rounded, round_rows


@dataclass(frozen=True, slots=True)
class FP8(Scheme):
    """See above. Scales are one float32 array [*outputs].

    Attributes:
        target: the device that rounds rows; None for the default one.
    """

    target: Target | None = None
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

    def on(self, target: Target) -> FP8:
        return replace(self, target=target)

    def product(self, x: jax.Array | Rounded, values: jax.Array, scales: jax.Array, inputs: Axes, dot: Dot) -> jax.Array:
        rows = x if isinstance(x, Rounded) else round_rows(x, target=self.target)
        return dot(rows.values, values, Factors(rows.steps, scales))
