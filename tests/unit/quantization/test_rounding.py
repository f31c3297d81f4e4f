"""Rounding: number for number what compressed-tensors stores of the same matrices (tests/golden/make_rounded.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jaxserve.errors import ConfigError
from jaxserve.models.quantization import quantization_from_hf
from jaxserve.quantization.recipes import GROUP_SIZES, RECIPES, Recipe, SchemeName, recipe_of
from jaxserve.quantization.rounding import restored, round_matrix, stored, stored_shapes
from jaxserve.weights.checkpoint import Block, Bounds, whole
from jaxserve.weights.quantized.layout import Dequantized, Layout
from jaxserve.weights.safetensors import SafetensorsCheckpoint

DATA = Path(__file__).parents[2] / "data" / "rounded"


def read(folder: str) -> dict[str, Block]:
    with SafetensorsCheckpoint(DATA / folder) as checkpoint:
        return {name: checkpoint.read(name, whole(shape)) for name, shape in checkpoint.shapes.items()}


WEIGHTS = read("weights")


@pytest.mark.parametrize("matrix", WEIGHTS)
@pytest.mark.parametrize("scheme", RECIPES)
def test_what_is_stored_is_what_the_library_stores(scheme: SchemeName, matrix: str) -> None:
    recipe = RECIPES[scheme]
    mine = stored(round_matrix(WEIGHTS[matrix], recipe), recipe)
    library = read(scheme)
    assert {f"{matrix}.{part}" for part in mine} == {name for name in library if name.startswith(f"{matrix}.")}
    for part, tensor in mine.items():
        expected = library[f"{matrix}.{part}"]
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape), part
        np.testing.assert_array_equal(tensor.view(np.uint8), expected.view(np.uint8), err_msg=part)
    told = {part: (tensor.dtype.name, tensor.shape) for part, tensor in mine.items()}
    assert stored_shapes(WEIGHTS[matrix].shape, WEIGHTS[matrix].dtype.name, recipe) == told


class Stored:
    """Arrays as a checkpoint's tensors."""

    def __init__(self, arrays: dict[str, Block]) -> None:
        self.arrays = arrays

    def read(self, name: str, bounds: Bounds) -> Block:
        return self.arrays[name][tuple(slice(*pair) for pair in bounds)]


@pytest.mark.parametrize("recipe", [*RECIPES.values(), recipe_of("w4a16", 32), recipe_of("w4a16-asym", 64)], ids=str)
@pytest.mark.parametrize("matrix", WEIGHTS)
def test_what_the_codes_stand_for_is_what_is_served(recipe: Recipe, matrix: str) -> None:
    rounded = round_matrix(WEIGHTS[matrix], recipe)
    arrays = {f"m.{part}": tensor for part, tensor in stored(rounded, recipe).items()}
    quantization = quantization_from_hf({"quantization_config": recipe.settings(("lm_head",))})
    shapes, dtypes = {n: a.shape for n, a in arrays.items()}, {n: a.dtype.name for n, a in arrays.items()}
    layout = Layout.of(shapes, dtypes, quantization, "float32")
    served = Dequantized(Stored(arrays), layout).read("m.weight", whole(WEIGHTS[matrix].shape))
    np.testing.assert_array_equal(restored(rounded, recipe), served)
    error = np.abs(served - WEIGHTS[matrix].astype(np.float32))
    assert 0 < error.max() < 1.2  # half a step of the row that reaches from -7.5 to 7.5 is 0.5, and bfloat16 rounds the step


def test_groups_are_what_kernels_take() -> None:
    assert [recipe_of("w4a16", size).group for size in GROUP_SIZES] == list(GROUP_SIZES)
    with pytest.raises(ConfigError, match="group_size must be 32, 64, 128, got 100"):
        recipe_of("w4a16", 100)
    with pytest.raises(ConfigError, match="group_size is for schemes with groups, not fp8"):
        recipe_of("fp8", 64)
