"""FP8 (E4M3) with a factor for blocks of outputs and inputs, as DeepSeek-V3 is stored (2024); activations stay as they are.

A block's outputs have the factor each, so that blocks need not end where a device's outputs do: 3 % more with blocks of 128. In a
product numbers are made in the dtype of the activations, the form that XLA makes in registers: factors are rounded to it, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pallas_kernels.quantization.scheme import Axes, Dot, Scheme
from pallas_kernels.round_rows import VALUES


@dataclass(frozen=True, slots=True)
class FP8Blocks(Scheme):
    """See above. Scales are one float32 array in the parameter's shape, whose last dimension of inputs are groups of them.

    Attributes:
        group: neighbouring inputs of the last dimension of inputs that share a factor.
    """

    group: int = 128
    name: ClassVar[str] = "fp8 blocks"
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float32")
    widened: ClassVar[bool] = True
    grouped: ClassVar[bool] = True
    capability: ClassVar[tuple[int, int] | None] = (8, 9)
    logits: ClassVar[bool] = False

    def fitted(self, shape: tuple[int, ...], inputs: Axes) -> FP8Blocks | None:
        """For inputs that are whole groups, each device's too."""
        return None if shape[inputs[-1]] % self.group else self

    def value_dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        return VALUES

    def scale_shapes(self, shape: tuple[int, ...], inputs: Axes) -> jax.ShapeDtypeStruct:
        sizes = tuple(size // self.group if axis == inputs[-1] else size for axis, size in enumerate(shape))
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    def scale_specs(self, spec: PartitionSpec, inputs: Axes) -> PartitionSpec:
        return spec

    def quantize(self, numbers: Any, inputs: Axes, numpy: Any = jnp) -> tuple[Any, Any]:
        raise ValueError("numbers are not rounded to blocks of FP8; they are read as they are stored")

    def dequantize(self, values: jax.Array, scales: jax.Array, inputs: Axes) -> jax.Array:
        return self._numbers(values, scales, inputs, jnp.dtype("float32"))

    def product(self, x: jax.Array, values: jax.Array, scales: jax.Array, inputs: Axes, dot: Dot) -> jax.Array:
        return dot(x, self._numbers(values, scales, inputs, x.dtype))

    def _numbers(self, values: jax.Array, scales: jax.Array, inputs: Axes, dtype: jnp.dtype) -> jax.Array:
        axis, shape = inputs[-1], values.shape
        grouped = values.astype(dtype).reshape(*shape[:axis], -1, self.group, *shape[axis + 1 :])
        return (grouped * jnp.expand_dims(scales.astype(dtype), axis + 1)).reshape(shape)
