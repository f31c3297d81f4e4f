"""How a tensor of a Hugging Face checkpoint is had from an array of another tree: a declared table of views, one a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True, slots=True)
class At:
    """One entry along an axis, which goes: a layer of stacked ones, or an expert. Which one, `View.at` says."""

    axis: int


@dataclass(frozen=True, slots=True)
class Permute:
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reshape:
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Entries start:stop along an axis."""

    axis: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Halves:
    """The last axis with its even places first: of a head whose rotary embedding turns neighbours to one that turns halves."""


@dataclass(frozen=True, slots=True)
class Times:
    """Multiplied in float32."""

    factor: float


Step = At | Permute | Reshape | Part | Halves | Times


@dataclass(frozen=True, slots=True)
class View:
    """One tensor of a checkpoint, as a part of an array of a tree.

    Attributes:
        name: of the array: its path in the tree, joined by dots.
        shape: that the array must have.
        steps: what makes the tensor of it, in this order.
        at: which entry each `At` takes.
    """

    name: str
    shape: tuple[int, ...]
    steps: tuple[Step, ...] = ()
    at: tuple[int, ...] = ()


Views = Mapping[str, View]
"""By the name that Hugging Face's checkpoints have for the tensor."""


def apply_steps(array: jax.Array, steps: tuple[Step, ...], at: list[jax.Array]) -> jax.Array:
    """The tensor; to be traced. `at` has an int32 scalar for each `At`, so that layers share a program."""
    numbers = iter(at)
    for step in steps:
        match step:
            case At(axis):
                array = lax.dynamic_index_in_dim(array, next(numbers), axis, keepdims=False)
            case Permute(axes):
                array = array.transpose(axes)
            case Reshape(shape):
                array = array.reshape(shape)
            case Part(axis, start, stop):
                array = lax.slice_in_dim(array, start, stop, axis=axis)
            case Halves():
                array = jnp.concatenate([array[..., ::2], array[..., 1::2]], axis=-1)
            case Times(factor):
                array = _times(array, factor)
    return array


def _times(array: jax.Array, factor: float) -> jax.Array:
    """Rounded to the array's dtype, which XLA may leave out where it is cast again."""
    finfo: Any = jnp.finfo(array.dtype)  # type: ignore[no-untyped-call]
    product = array.astype(jnp.float32) * jnp.float32(factor)
    return lax.reduce_precision(product, finfo.nexp, finfo.nmant).astype(array.dtype)
