"""A scheme that no kernel knows: what its one file must say for matrices to be held in it and multiplied."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import PartitionSpec

from pallas_kernels.quantization import Axes, Scheme
from pallas_kernels.quantization.scheme import Dot


@dataclass(frozen=True, slots=True)
class RoundedRows(Scheme):
    """Weights as they are; rows rounded by numpy to E4M3 and back, each's numbers of the last dimension together."""

    name: ClassVar[str] = "rounded rows"

    def product(self, x: jax.Array, values: jax.Array, scales: Any, inputs: Axes, dot: Dot) -> jax.Array:
        return dot(jax.pure_callback(rounded_rows, jax.ShapeDtypeStruct(x.shape, x.dtype), x), values)


def rounded_rows(x: Any) -> np.ndarray:
    x = np.asarray(x, np.float32)
    steps = np.maximum(np.abs(x).max(axis=-1, keepdims=True) * np.float32(1 / 448), np.float32(2.0**-126))
    rounded: np.ndarray = (x / steps).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * steps
    return rounded


@dataclass(frozen=True, slots=True)
class RoundedTokens(Scheme):
    """Weights as they are; rows rounded by numpy to int8 and back, all of a token's numbers together."""

    name: ClassVar[str] = "rounded tokens"

    def product(self, x: jax.Array, values: jax.Array, scales: Any, inputs: Axes, dot: Dot) -> jax.Array:
        return dot(jax.pure_callback(rounded_tokens, jax.ShapeDtypeStruct(x.shape, x.dtype), x), values)


def rounded_tokens(x: Any) -> np.ndarray:
    x = np.asarray(x, np.float32)
    rows = x.reshape(len(x), -1)
    steps = np.maximum(np.abs(rows).max(axis=1, keepdims=True) * np.float32(1 / 127), np.float32(2.0**-126))
    rounded: np.ndarray = np.rint(rows / steps) * steps
    return rounded.reshape(x.shape)


class Factors(NamedTuple):
    scales: Any
    zero_points: Any


@dataclass(frozen=True, slots=True)
class Groups(Scheme):
    """4 bits with a scale and a zero point for every two inputs; rows of x are rounded to bfloat16."""

    name: ClassVar[str] = "groups"
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float32")

    def value_dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        return jnp.dtype("uint8")

    def scale_shapes(self, shape: tuple[int, ...], inputs: Axes) -> Factors:
        size = tuple(size // 2 if axis == inputs[-1] else size for axis, size in enumerate(shape))
        return Factors(jax.ShapeDtypeStruct(size, jnp.float32), jax.ShapeDtypeStruct(size, jnp.float32))

    def scale_specs(self, spec: PartitionSpec, inputs: Axes) -> Factors:
        return Factors(spec, spec)

    def quantize(self, numbers: Any, inputs: Axes, numpy: Any = jnp) -> tuple[Any, Factors]:
        axis, numbers = inputs[-1], numbers.astype(numpy.float32)
        paired = numbers.reshape(*numbers.shape[:axis], -1, 2, *numbers.shape[axis + 1 :])
        low, high = paired.min(axis=axis + 1), paired.max(axis=axis + 1)
        scales = numpy.maximum((high - low) / 15, numpy.float32(2.0**-126))
        wide = (numpy.repeat(part, 2, axis=axis) for part in (low, scales))
        zero, step = wide
        return numpy.rint((numbers - zero) / step).astype(numpy.uint8), Factors(scales, low)

    def dequantize(self, values: jax.Array, scales: Factors, inputs: Axes) -> jax.Array:
        step, zero = (jnp.repeat(part, 2, axis=inputs[-1]) for part in scales)
        return values.astype(jnp.float32) * step + zero

    def product(self, x: jax.Array, values: jax.Array, scales: Factors, inputs: Axes, dot: Dot) -> jax.Array:
        rounded = x.astype(jnp.bfloat16).astype(jnp.float32)
        return dot(rounded, self.dequantize(values, scales, inputs))
