"""What a calibration text makes of a model: it is run on the text as it is and as rounding leaves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jaxserve.quantization.audit import Measure, judge
from jaxserve.quantization.calibration import Calibration, read_calibration
from jaxserve.quantization.checkpoint import Model
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
    def of(cls, model: Model, recipe: Recipe, path: Path, told: Told) -> Judged:
        calibration = read_calibration(path, model)
        layerwise = Layerwise(model.config, model.tensors, calibration.fitting.shape[1], partial(told, "measuring"))
        return cls(recipe, calibration, layerwise, Measure(model.config, model.tensors, layerwise, recipe))

    def judge(self, selection: Selection, rounded: Tensors) -> Quality:
        return judge(self.measure, self.recipe, selection, self.calibration, rounded)
