"""float8_e4m3fn with a factor for each output and 128 inputs, as checkpoints have it that were trained so (DeepSeek, Qwen3).

They store a factor for 128 outputs at once; here each output has its own copy, a 32nd of what the numbers take. Activations stay
as they are. Nothing is rounded to it: matrices are read as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pallas_kernels.quantization.scheme import Axes, Dot, Scheme, outputs_of

GROUP = 128  # neighbouring inputs that share a factor, counted over all dimensions that are inputs


@dataclass(frozen=True, slots=True)
class Float8Blocks(Scheme):
    """See above. Scales are one float32 array [inputs / 128, *outputs]."""

    name: ClassVar[str] = "fp8_blocks"
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16",)

    def fitted(self, shape: tuple[int, ...], inputs: Axes) -> Float8Blocks | None:
        return None if prod(shape[axis] for axis in inputs) % GROUP else self

    def value_dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        return jnp.dtype("float8_e4m3fn")

    def scale_shapes(self, shape: tuple[int, ...], inputs: Axes) -> jax.ShapeDtypeStruct:
        groups = prod(shape[axis] for axis in inputs) // GROUP
        return jax.ShapeDtypeStruct((groups, *outputs_of(shape, inputs)), jnp.float32)

    def scale_specs(self, spec: PartitionSpec, inputs: Axes) -> PartitionSpec:
        return PartitionSpec(None, *outputs_of(tuple(spec), inputs))  # type: ignore[no-untyped-call]

    def quantize(self, numbers: Any, inputs: Axes, numpy: Any = jnp) -> tuple[Any, Any]:
        raise ValueError("nothing is rounded to float8 in blocks: such matrices are read as they are stored")

    def dequantize(self, values: jax.Array, scales: jax.Array, inputs: Axes) -> jax.Array:
        shape = values.shape
        order = (*inputs, *(axis for axis in range(len(shape)) if axis not in inputs))
        factors = jnp.repeat(scales, GROUP, axis=0).reshape([shape[axis] for axis in order])
        return values.astype(jnp.float32) * factors.transpose([order.index(axis) for axis in range(len(shape))])

    def product(self, x: jax.Array, values: jax.Array, scales: jax.Array, inputs: Axes, dot: Dot) -> jax.Array:
        return dot(x, self.dequantize(values, scales, inputs).astype(x.dtype))
