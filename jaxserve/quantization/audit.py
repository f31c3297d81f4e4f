"""Measures what rounding costs: errors of products, perplexity, and which matrices are better left as they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxserve.errors import CheckpointError
from jaxserve.models.binding import rounded_products
from jaxserve.models.config import DecoderConfig
from jaxserve.models.rules import Path
from jaxserve.quantization.calibration import Calibration, Windows
from jaxserve.quantization.checkpoint import Model
from jaxserve.quantization.layerwise import Flat, Layerwise, perplexity
from jaxserve.quantization.observed import Compared, RoundedRows, Sums, matrix
from jaxserve.quantization.recipes import Recipe
from jaxserve.quantization.rounding import Floats, restored, round_matrix
from jaxserve.quantization.selection import Selection
from jaxserve.weights.checkpoint import Block, Bounds, Tensors
from jaxserve.weights.manifest import ProductError, Quality
from pallas_kernels.matmul import Weight

WORST = 16
"""How many of the matrices with the largest errors are rounded alone, and may be kept."""
ROUTED = ("gate_up", "up", "down")  # what routed experts call their matrices
Errors = Mapping[Path, Sums]
"""Of each unit of a selection."""


class Restored:
    """The tensors of a model, some of them as rounding to the nearest leaves them. See `Tensors`."""

    def __init__(self, model: Model, recipe: Recipe, names: Collection[str]) -> None:
        self._model, self._recipe, self._names = model, recipe, names
        self._latest: tuple[str, Floats] | None = None

    def read(self, name: str, bounds: Bounds) -> Block:
        """See `Tensors`; such a tensor is in float32, and the latest one is kept."""
        if name not in self._names:
            return self._model.tensors.read(name, bounds)
        if self._latest is None or self._latest[0] != name:
            self._latest = (name, restored(round_matrix(self._model.matrix(name), self._recipe), self._recipe))
        return self._latest[1][tuple(slice(*pair) for pair in bounds)]


class Measure:
    """Compares a model with what rounding makes of it.

    Args:
        config: the decoder.
        original: its tensors.
        layerwise: runs it.
        recipe: how matrices are rounded, and rows of activations where it says so; those of routed experts are not.
    """

    def __init__(self, config: DecoderConfig, original: Tensors, layerwise: Layerwise, recipe: Recipe) -> None:
        self._products = rounded_products(config)
        self._original, self._layerwise, self._recipe = original, layerwise, recipe

    def errors(self, rounded: Tensors, units: Collection[Path], windows: Windows) -> tuple[npt.NDArray[np.float64], Errors]:
        """The original's losses, and how the products of its own activations differ once matrices are rounded.

        Of routed experts it is how the weights differ.
        """
        told = {unit: jax.new_ref(jnp.zeros(len(Sums._fields), jnp.float32)) for unit in units}

        def compared(path: Path, value: jax.Array) -> Weight:
            unit = _unit(path, units)
            if unit is None:
                return value
            (other,) = self._layerwise.read(rounded, [path]).values()
            if path in self._products:
                return matrix(value, Compared(self._recipe), self._products[path].inputs, (other, told[unit]))
            told[unit][...] += _difference(value, other)
            return value

        def parameters(number: int) -> Flat:
            return {path: compared(path, value) for path, value in self._layerwise.read_layer(self._original, number).items()}

        losses = self._layerwise.run(windows, parameters)
        return losses, {unit: Sums(*np.asarray(sums[...]).tolist()) for unit, sums in told.items()}

    def losses(self, rounded: Tensors, units: Collection[Path], windows: Windows) -> npt.NDArray[np.float64]:
        """With matrices, and rows where the recipe says so, rounded."""
        rows = RoundedRows(self._recipe)

        def served(path: Path, value: jax.Array) -> Weight:
            if self._recipe.activations is None or path not in units or path not in self._products:
                return value
            return matrix(value, rows, self._products[path].inputs)

        def parameters(number: int) -> Flat:
            return {path: served(path, value) for path, value in self._layerwise.read_layer(rounded, number).items()}

        return self._layerwise.run(windows, parameters)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to keep, and why.

    Attributes:
        selection: what is rounded then.
        before: perplexity of the original on the windows that are fitted by.
        after: with everything rounded.
        proposed: with the selection rounded.
        errors: of everything.
        alone: perplexity with nothing else rounded, of the units with the largest errors, the worst first.
    """

    selection: Selection
    before: float
    after: float
    proposed: float
    errors: Errors
    alone: Mapping[Path, float]


def increase(before: float, after: float) -> float:
    """In percent."""
    return 100.0 * (after / before - 1.0)


def propose(model: Model, measure: Measure, recipe: Recipe, selection: Selection, windows: Windows, budget: float) -> Proposal:
    """Choose what to keep so that perplexity rises by no more than `budget` percent.

    Each of the `WORST` units with the largest relative errors is rounded alone. If perplexity rises by more with everything
    rounded, the fewest of them are kept, those first that raise it most, with which the rest stays within the budget: found by
    halving, each number measured. If it does not even without all of them, they are kept, and the caller is told by `proposed`.
    """

    def measured(units: Collection[Path]) -> float:
        names = {name for name, unit in selection.matrices.items() if unit in units}
        return perplexity(measure.losses(Restored(model, recipe, names), units, windows))

    units = selection.units()
    losses, errors = measure.errors(Restored(model, recipe, selection.matrices.keys()), units.keys(), windows)
    before, after = perplexity(losses), measured(units.keys())
    worst = sorted(units, key=lambda unit: -errors[unit].relative)[:WORST]
    alone = {unit: measured({unit}) for unit in worst}
    order = sorted(worst, key=lambda unit: -alone[unit])
    most = min(len(order), len(units) - 1)
    results = {0: after}

    def fits(count: int) -> bool:
        if count not in results:
            results[count] = measured(units.keys() - set(order[:count]))
        return increase(before, results[count]) <= budget

    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    fits(low)
    kept = selection.without(order[:low], f"a budget of {budget:g} % more perplexity") if low else selection
    return Proposal(kept, before, after, results[low], errors, {unit: alone[unit] for unit in order})


def judge(measure: Measure, recipe: Recipe, selection: Selection, calibration: Calibration, rounded: Tensors) -> Quality:
    """What a checkpoint's manifest is to say, measured on windows that nothing was chosen or fitted by."""
    units = selection.units().keys()
    losses, errors = measure.errors(rounded, units, calibration.measuring)
    before, after = perplexity(losses), perplexity(measure.losses(rounded, units, calibration.measuring))
    if not np.isfinite([before, after]).all():
        raise CheckpointError(
            f"perplexity is {before:g} before and {after:g} after: nothing can be said of that", param="calibration"
        )
    return Quality(
        scheme=recipe.name,
        calibration=calibration.digest,
        tokens=losses.size,
        perplexity_before=before,
        perplexity_after=after,
        increase_percent=increase(before, after),
        kept=tuple(selection.kept),
        errors={".".join(unit): ProductError(sums.largest, sums.relative, sums.cosine) for unit, sums in errors.items()},
    )


def _unit(path: Path, units: Collection[Path]) -> Path | None:
    """The unit that a parameter belongs to."""
    if path in units:
        return path
    return path[:-1] if path[-1] in ROUTED and path[:-1] in units else None


@jax.jit
def _difference(before: jax.Array, after: jax.Array) -> jax.Array:
    """The Sums of two arrays."""
    apart = before - after
    sums = [jnp.vdot(apart, apart), jnp.vdot(before, before), jnp.vdot(after, after), jnp.vdot(before, after)]
    return jnp.stack([*sums, jnp.max(jnp.abs(apart))])
