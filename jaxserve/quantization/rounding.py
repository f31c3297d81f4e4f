"""Rounds matrices to the nearest as compressed-tensors does, and stores them as it does.

Everything is computed in float32. A scale is its numbers' largest magnitude over half the range, rounded to the dtype that the
weight had, in which it is stored; numbers over the scale as it is stored are rounded half to even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxserve.quantization.recipes import BLOCK, Recipe
from jaxserve.weights.checkpoint import Block

Floats = npt.NDArray[np.float32]
_FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
_FP8_MAX = np.float32(448)
_WORD = 32  # bits
_EPSILON = np.finfo(np.float32).eps
"""The scale of numbers that are all 0."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix [O, I] of (code - zero) * scale.

    Attributes:
        codes: [O, I] in int8 or float8_e4m3fn.
        scales: a number for each block [O / rows, I / columns], in the dtype that the weight had.
        zeros: int8 in the same grid; None where all are 0.
    """

    codes: Block
    scales: Block
    zeros: npt.NDArray[np.int8] | None


def round_matrix(weights: Block, recipe: Recipe) -> Rounded:
    """A matrix [O, I] rounded to the nearest."""
    numbers = np.asarray(weights, np.float32)
    scales, zeros = find_scales(numbers, recipe, weights.dtype)
    return Rounded(round_to(numbers, scales, zeros, recipe), scales, zeros)


def find_scales(numbers: Floats, recipe: Recipe, dtype: np.dtype[Any]) -> tuple[Block, npt.NDArray[np.int8] | None]:
    """Scales and zero points of a matrix [O, I], the scales in `dtype`."""
    least, greatest = np.minimum(_reduced(numbers, recipe, np.minimum), 0), np.maximum(_reduced(numbers, recipe, np.maximum), 0)
    low, high = limits(recipe)
    zeros = None
    if recipe.symmetric:
        exact = np.maximum(-least, greatest) / np.float32((high - low) / 2)
    else:
        exact = (greatest - least) / np.float32(high - low)
        offsets = np.clip(low - least / np.where(exact == 0, np.float32(1), exact), low, high)
        zeros = np.where(exact == 0, 0, np.rint(offsets)).astype(np.int8)
    scales = exact.astype(dtype)
    return np.where(scales == 0, _EPSILON.astype(dtype), scales), zeros


def round_to(numbers: Floats, scales: Block, zeros: npt.NDArray[np.int8] | None, recipe: Recipe) -> Block:
    """The codes of a matrix [O, I] with given scales and zero points."""
    scaled = numbers / spread(scales.astype(np.float32), numbers.shape, recipe)
    if zeros is not None:
        scaled += spread(zeros.astype(np.float32), numbers.shape, recipe)
    np.clip(scaled, *limits(recipe), out=scaled)
    return scaled.astype(_FP8) if recipe.numbers == "float" else np.rint(scaled).astype(np.int8)


def restored(rounded: Rounded, recipe: Recipe) -> Floats:
    """What the codes stand for, in float32."""
    numbers = rounded.codes.astype(np.float32)
    if rounded.zeros is not None:
        numbers -= spread(rounded.zeros.astype(np.float32), numbers.shape, recipe)
    numbers *= spread(rounded.scales.astype(np.float32), numbers.shape, recipe)
    return numbers


def limits(recipe: Recipe) -> tuple[np.float32, np.float32]:
    """The least and the greatest code."""
    if recipe.numbers == "float":
        return -_FP8_MAX, _FP8_MAX
    half = 2 ** (recipe.bits - 1)
    return np.float32(-half), np.float32(half - 1)


def spread(grid: Floats, shape: tuple[int, ...], recipe: Recipe) -> Floats:
    """A number for each of a matrix of this shape, from one for each block; [O, 1] where all inputs have the same."""
    if recipe.strategy == "block":
        grid = np.repeat(grid, BLOCK, axis=0)[: shape[0]]
    return grid if recipe.group is None else np.repeat(grid, recipe.group, axis=1)[:, : shape[1]]


def stored(rounded: Rounded, recipe: Recipe) -> dict[str, Block]:
    """The tensors of a module, by what follows its name."""
    if not recipe.packed:
        return {"weight": rounded.codes, "weight_scale": rounded.scales}
    tensors = {
        "weight_packed": pack(rounded.codes, recipe.bits),
        "weight_scale": rounded.scales,
        "weight_shape": np.array(rounded.codes.shape, np.int64),
    }
    if rounded.zeros is not None:
        tensors["weight_zero_point"] = np.ascontiguousarray(pack(np.ascontiguousarray(rounded.zeros.T), recipe.bits).T)
    return tensors


def stored_shapes(shape: tuple[int, ...], dtype: str, recipe: Recipe) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of what `stored` gives for a matrix of this shape and dtype."""
    outputs, inputs = shape
    grid = (-(-outputs // BLOCK) if recipe.strategy == "block" else outputs, -(-inputs // (recipe.group or inputs)))
    if not recipe.packed:
        codes = _FP8.name if recipe.numbers == "float" else "int8"
        return {"weight": (codes, shape), "weight_scale": (dtype, grid)}
    each = _WORD // recipe.bits
    shapes = {
        "weight_packed": ("int32", (outputs, inputs // each)),
        "weight_scale": (dtype, grid),
        "weight_shape": ("int64", (2,)),
    }
    if not recipe.symmetric:
        shapes["weight_zero_point"] = ("int32", (outputs // each, grid[1]))
    return shapes


def pack(codes: npt.NDArray[np.int8], bits: int) -> npt.NDArray[np.int32]:
    """Rows of whole numbers of 4 or 8 bits as words, the first number in the lowest bits; a row must fill its words."""
    each = _WORD // bits
    unsigned = (codes.view(np.uint8) + np.uint8(2 ** (bits - 1))) & np.uint8(2**bits - 1)
    words = np.zeros((codes.shape[0], codes.shape[1] // each), np.uint32)
    for place in range(each):
        words |= unsigned[:, place::each].astype(np.uint32) << np.uint32(place * bits)
    return words.view(np.int32)


def _reduced(numbers: Floats, recipe: Recipe, by: Any) -> Floats:
    """The least or the greatest number of each block, [O / rows, I / columns]."""
    inputs = recipe.group or numbers.shape[1]
    each: Floats = by.reduceat(numbers, np.arange(0, numbers.shape[1], inputs), axis=1)
    if recipe.strategy == "block":
        each = by.reduceat(each, np.arange(0, numbers.shape[0], BLOCK), axis=0)
    return each
