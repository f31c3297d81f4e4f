"""Matrices that tell of their products while a model runs: schemes whose `product` observes its rows. No model file knows.

What they tell is added up on the device, in arrays that are referred to (`jax.new_ref`): a callback to the host would wait for
threads that wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.quantization.recipes import BLOCK, Recipe
from jaxserve.quantization.rounding import limits
from pallas_kernels.matmul import Layout, Matrix
from pallas_kernels.quantization import Axes, Scheme
from pallas_kernels.quantization.scheme import Dot


class Sums(NamedTuple):
    """Of a product Y and of what it becomes, Z: sums over all numbers, and the largest of |Y - Z|."""

    errors: float
    products: float
    rounded: float
    mixed: float
    largest: float

    @property
    def relative(self) -> float:
        """|Y - Z| / |Y|."""
        return float(np.sqrt(self.errors / self.products)) if self.products else 0.0

    @property
    def cosine(self) -> float:
        """Of the angle between Y and Z."""
        length = np.sqrt(self.products * self.rounded)
        return float(self.mixed / length) if length else 1.0


@dataclass(frozen=True, slots=True)
class RoundedRows(Scheme):
    """Rows are rounded as a recipe says before they are multiplied."""

    recipe: Recipe
    name: ClassVar[str] = "rounded rows"

    def product(self, x: jax.Array, values: jax.Array, scales: Any, inputs: Axes, dot: Dot) -> jax.Array:
        return dot(round_rows(x, self.recipe), values)


@dataclass(frozen=True, slots=True)
class Watched(Scheme):
    """The scales are a reference to float32[I, I], to which the outer products of the rows are added when they are multiplied."""

    name: ClassVar[str] = "watched"

    def product(self, x: jax.Array, values: jax.Array, scales: Any, inputs: Axes, dot: Dot) -> jax.Array:
        rows = x.reshape(x.shape[0], -1)
        scales[...] += jnp.matmul(rows.T, rows, precision=jax.lax.Precision.HIGHEST)
        return dot(x, values)


@dataclass(frozen=True, slots=True)
class Compared(Scheme):
    """The product as it is. The scales are the rounded matrix, and a reference to float32[5], to which its product's Sums go."""

    recipe: Recipe
    name: ClassVar[str] = "compared"

    def product(self, x: jax.Array, values: jax.Array, scales: Any, inputs: Axes, dot: Dot) -> jax.Array:
        rounded, told = scales
        y, z = dot(x, values), dot(round_rows(x, self.recipe), rounded)
        sums = jnp.stack([jnp.sum(jnp.square(y - z)), jnp.sum(jnp.square(y)), jnp.sum(jnp.square(z)), jnp.sum(y * z)])
        before = told[...]
        told[...] = jnp.concatenate([before[:4] + sums, jnp.maximum(before[4:], jnp.max(jnp.abs(y - z)))])
        return y


def matrix(values: jax.Array, scheme: Scheme, inputs: Axes, scales: Any = None) -> Matrix:
    """A parameter as a matrix of a scheme."""
    return Matrix(values, scales, Layout(inputs), scheme)


def round_rows(x: jax.Array, recipe: Recipe) -> jax.Array:
    """Activations x[T, *inputs] as a checkpoint of the recipe would have them, each token with scales of its own."""
    if recipe.activations is None:
        return x
    low, high = limits(recipe)
    groups = x.reshape(x.shape[0], -1, BLOCK) if recipe.activations == "group" else x.reshape(x.shape[0], 1, -1)
    scales = jnp.max(jnp.abs(groups), axis=-1, keepdims=True) / ((high - low) / 2)
    scaled = jnp.clip(groups / jnp.where(scales == 0, 1, scales), low, high)
    codes = scaled.astype(jnp.float8_e4m3fn).astype(x.dtype) if recipe.numbers == "float" else jnp.rint(scaled)
    return (codes * scales).reshape(x.shape)
