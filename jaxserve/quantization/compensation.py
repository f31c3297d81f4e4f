"""Rounding that makes up for its own errors (GPTQ, Frantar et al. 2023).

Inputs are rounded one after the other, and the error of each is taken back by those that are still to come, as far as the inputs
that the matrix sees go together: the error of the products is what becomes small, not that of the weights. Scales of a group are
those of the weights as they are when its first input's turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxserve.models.binding import param_products
from jaxserve.models.rules import Path
from jaxserve.quantization.calibration import Windows
from jaxserve.quantization.checkpoint import Model
from jaxserve.quantization.layerwise import Flat, Layerwise
from jaxserve.quantization.observed import Watched, matrix
from jaxserve.quantization.recipes import Recipe
from jaxserve.quantization.rounding import Floats, Rounded, find_scales, limits, restored, round_matrix
from jaxserve.quantization.selection import Selection
from jaxserve.weights.checkpoint import Block, Bounds

BLOCK = 128  # inputs whose errors are handed on together
DAMPING = 0.01  # of the mean square of the inputs, added to each
Doubles = npt.NDArray[np.float64]


def compensate(weights: Block, gram: npt.NDArray[np.floating], recipe: Recipe) -> Rounded:
    """A matrix [O, I] in groups of inputs, rounded.

    Args:
        weights: the matrix.
        gram: [I, I], the sum of the outer products of the rows that it is multiplied by.
        recipe: how it is rounded; groups must divide `BLOCK`.
    """
    assert recipe.group is not None
    left, factor = weights.astype(np.float64), _factor(gram)
    codes, scales, zeros = np.empty(weights.shape, np.int8), [], []
    for first in range(0, left.shape[1], BLOCK):
        last = min(first + BLOCK, left.shape[1])
        errors = np.empty((len(left), last - first))
        for column in range(first, last):
            if column % recipe.group == 0:
                group = left[:, column : column + recipe.group].astype(np.float32)
                scale, zero = find_scales(group, recipe, weights.dtype)
                scales.append(scale)
                zeros.append(np.zeros(scale.shape, np.int8) if zero is None else zero)
            step, offset = scales[-1][:, 0].astype(np.float64), zeros[-1][:, 0].astype(np.float64)
            code = np.rint(np.clip(left[:, column] / step + offset, *limits(recipe)))
            error = (left[:, column] - (code - offset) * step) / factor[column, column]
            left[:, column:last] -= np.outer(error, factor[column, column:last])
            codes[:, column], errors[:, column - first] = code, error
        left[:, last:] -= errors @ factor[first:last, last:]
    points = None if recipe.symmetric else np.concatenate(zeros, axis=1)
    return Rounded(codes, np.concatenate(scales, axis=1), points)


class Compensated:
    """Rounds the matrices of a model layer by layer, each for the inputs that it sees once those before it are rounded.

    Matrices of one layer are rounded for what its own matrices give before any of them is. Those of routed experts are rounded
    to the nearest.

    Args:
        model: where the numbers are.
        layerwise: runs it.
        recipe: how matrices are rounded.
        selection: which ones.
        windows: of tokens.
    """

    def __init__(self, model: Model, layerwise: Layerwise, recipe: Recipe, selection: Selection, windows: Windows) -> None:
        self._model, self._layerwise, self._recipe = model, layerwise, recipe
        self._units, self._products = selection.units(), param_products(model.config)
        self._hidden, self._number = layerwise.embed(windows), 0
        self._rounded: dict[str, Rounded] = {}

    def __call__(self, name: str) -> Rounded:
        """See `checkpoint.Round`."""
        while name not in self._rounded:
            self._round_layer()
        return self._rounded.pop(name)

    def _round_layer(self) -> None:
        number, layerwise = self._number, self._layerwise
        grams = {
            path: jax.new_ref(jnp.zeros((self._inputs(path),) * 2, jnp.float32))
            for path in self._units
            if path[1] == str(number) and path in self._products
        }
        watched: Flat = {
            path: matrix(value, Watched(), self._products[path].inputs, grams[path]) if path in grams else value
            for path, value in layerwise.read_layer(self._model.tensors, number).items()
        }
        layerwise.layer(number, watched, self._hidden)
        del watched
        for unit, names in self._units.items():
            if unit[1] == str(number):
                gram = np.asarray(grams.pop(unit)[...]) if unit in grams else None
                for name in names:
                    self._rounded[name] = self._round(name, gram)
        known = _Known(self._model, {name: restored(rounded, self._recipe) for name, rounded in self._rounded.items()})
        self._hidden = layerwise.layer(number, layerwise.read_layer(known, number), self._hidden)
        self._number += 1

    def _round(self, name: str, gram: Floats | None) -> Rounded:
        weights = self._model.matrix(name)
        return round_matrix(weights, self._recipe) if gram is None else compensate(weights, gram, self._recipe)

    def _inputs(self, path: Path) -> int:
        return self._model.tensors.shapes[self._units[path][0]][1]


class _Known:
    """The tensors of a model with some replaced. See `Tensors`."""

    def __init__(self, model: Model, numbers: Mapping[str, Floats]) -> None:
        self._model, self._numbers = model, numbers

    def read(self, name: str, bounds: Bounds) -> Block:
        if name not in self._numbers:
            return self._model.tensors.read(name, bounds)
        return self._numbers[name][tuple(slice(*pair) for pair in bounds)]


def _factor(gram: npt.NDArray[np.floating]) -> Doubles:
    """The upper Cholesky factor of the inverse of the damped sums; inputs that are always 0 are tied to no other."""
    damped = gram.astype(np.float64)
    diagonal = np.einsum("ii->i", damped)
    diagonal[diagonal == 0] = 1
    diagonal += DAMPING * diagonal.mean()
    lower: Doubles = np.linalg.cholesky(np.linalg.inv(damped))
    return lower.T
