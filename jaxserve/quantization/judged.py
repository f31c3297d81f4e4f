"""What a calibration text makes of a model: it is run on the text as it is and as rounding leaves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jaxserve.quantization.audit import Measure, judge
from jaxserve.quantization.calibration import FEWEST, Calibration, read_calibration
from jaxserve.quantization.checkpoint import Model, Round, nearest
from jaxserve.quantization.compensation import Compensated
from jaxserve.quantization.layerwise import Layerwise
from jaxserve.quantization.recipes import Recipe
from jaxserve.quantization.selection import Selection
from jaxserve.weights.checkpoint import Tensors
from jaxserve.weights.manifest import Quality

Told = Callable[[str, int, int], None]
"""Told of what is done, how much of it, and of how much."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A model that is quantized with a calibration text at hand."""

    recipe: Recipe
    calibration: Calibration
    layerwise: Layerwise
    measure: Measure

    @classmethod
    def of(cls, model: Model, recipe: Recipe, selection: Selection, path: Path, told: Told) -> Judged:
        """Raises what `read_calibration` raises: where errors are made up for, too, for fewer tokens than a matrix has inputs."""
        widest = max(model.tensors.shapes[name][1] for name in selection.matrices)
        calibration = read_calibration(path, model, max(FEWEST, widest) if recipe.compensated else FEWEST)
        layerwise = Layerwise(model.config, model.tensors, calibration.fitting.shape[1], partial(told, "measuring"))
        return cls(recipe, calibration, layerwise, Measure(model.config, model.tensors, layerwise, recipe))

    def round(self, model: Model, selection: Selection) -> Round:
        """What rounds the matrices: with errors made up for, if the recipe is so coarse that it pays."""
        if not self.recipe.compensated:
            return nearest(model, self.recipe)
        return Compensated(model, self.layerwise, self.recipe, selection, self.calibration.fitting)

    def judge(self, selection: Selection, rounded: Tensors) -> Quality:
        return judge(self.measure, self.recipe, selection, self.calibration, rounded)
