"""Error compensation: GPTQ as it is defined, and less error than rounding to the nearest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jaxserve.quantization.checkpoint import open_model
from jaxserve.quantization.compensation import DAMPING, Compensated, compensate
from jaxserve.quantization.layerwise import Layerwise
from jaxserve.quantization.recipes import Recipe, recipe_of
from jaxserve.quantization.rounding import restored, round_matrix
from jaxserve.quantization.selection import select
from tests.golden.reading import DATA

RNG = np.random.default_rng(3)
RECIPES = [recipe_of("w4a16", 32), recipe_of("w4a16", 128), recipe_of("w4a16-asym", 64)]


def rows_of(inputs: int) -> np.ndarray:
    """Activations whose inputs go together, one of which is always 0."""
    rows = RNG.normal(size=(700, 24)) @ RNG.normal(size=(24, inputs)) + 0.3 * RNG.normal(size=(700, inputs))
    rows[:, 5] = 0
    return rows


def by_definition(weights: np.ndarray, gram: np.ndarray, recipe: Recipe) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and zero points by optimal brain quantization, an input at a time: the inverse loses what was rounded."""
    group = recipe.group
    assert group is not None
    inverse = gram.copy()
    for at in range(len(inverse)):
        inverse[at, at] = inverse[at, at] or 1.0
    inverse = np.linalg.inv(inverse + DAMPING * np.trace(inverse) / len(inverse) * np.eye(len(inverse)))
    left = weights.astype(np.float64)
    codes, scales, zeros = [], [], []
    for at in range(left.shape[1]):
        if at % group == 0:
            part = left[:, at : at + group].astype(np.float32)
            least, most = np.minimum(part.min(axis=1), 0), np.maximum(part.max(axis=1), 0)
            if recipe.symmetric:
                scale = np.maximum(-least, most) / np.float32(7.5)
                zero = np.zeros(len(scale))
            else:
                scale = (most - least) / np.float32(15)
                zero = np.rint(np.clip(-8 - least / scale, -8, 7))
            scales.append(scale)
            zeros.append(zero)
        code = np.rint(np.clip(left[:, at] / scales[-1].astype(np.float64) + zeros[-1], -8, 7))
        error = left[:, at] - (code - zeros[-1]) * scales[-1].astype(np.float64)
        left -= np.outer(error, inverse[at] / inverse[at, at])
        inverse -= np.outer(inverse[:, at], inverse[at]) / inverse[at, at]
        codes.append(code)
    return np.stack(codes, axis=1), np.stack(scales, axis=1), np.stack(zeros, axis=1)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.name}-{recipe.group}")
def test_it_is_what_the_definition_gives(recipe: Recipe) -> None:
    weights = RNG.normal(size=(24, 256)).astype(np.float32)
    rows = rows_of(256)
    rounded = compensate(weights, rows.T @ rows, recipe)
    codes, scales, zeros = by_definition(weights, rows.T @ rows, recipe)
    np.testing.assert_allclose(rounded.scales, scales, rtol=1e-6)
    np.testing.assert_array_equal(rounded.codes, codes)
    assert (rounded.zeros is None) == recipe.symmetric
    if rounded.zeros is not None:
        np.testing.assert_array_equal(rounded.zeros, zeros)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.name}-{recipe.group}")
def test_products_differ_less_than_to_the_nearest(recipe: Recipe) -> None:
    weights = RNG.normal(size=(48, 384)).astype(np.float32)
    rows = rows_of(384)
    errors = [
        np.linalg.norm(rows @ (restored(rounded, recipe) - weights).T)
        for rounded in (compensate(weights, rows.T @ rows, recipe), round_matrix(weights, recipe))
    ]
    assert errors[0] < 0.6 * errors[1]


def test_inputs_that_have_nothing_in_common_are_rounded_to_the_nearest() -> None:
    recipe = RECIPES[0]
    weights = RNG.normal(size=(8, 64)).astype(np.float32)
    one, other = compensate(weights, np.diag(RNG.uniform(1, 2, 64)), recipe), round_matrix(weights, recipe)
    differ = one.codes != other.codes
    assert set(other.codes[differ]) <= {-8}, "a group's largest number is a tie at -7.5, or nearly so"
    assert differ.mean() < 0.05
    np.testing.assert_array_equal(one.scales, other.scales)


def test_a_models_matrices_are_rounded_for_their_own_inputs() -> None:
    """The first layer's, whose inputs numpy can say: normalised embeddings. The others differ from the nearest, too."""
    recipe, windows = recipe_of("w4a16", 32), RNG.integers(0, 272, (4, 40)).astype(np.int32)
    with open_model(DATA / "llama-linear") as model:
        selection = select(model.config, model.tensors, recipe, ("*.1.*.o_proj",))
        layerwise = Layerwise(model.config, model.tensors, 40, lambda *_: None)
        rounding = Compensated(model, layerwise, recipe, selection, windows)
        rounded = {name: rounding(name) for name in selection.matrices}
        x = model.matrix("model.embed_tokens.weight").astype(np.float64)[windows.reshape(-1)]
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + model.config.norm_eps)
        x = x * model.matrix("model.layers.0.input_layernorm.weight")
        for part in "qkv":
            name = f"model.layers.0.self_attn.{part}_proj.weight"
            expected = compensate(model.matrix(name), x.T @ x, recipe)
            assert (rounded[name].codes != expected.codes).mean() < 0.01  # where float32 sums round the other way
        for name, one in rounded.items():
            assert (one.codes != round_matrix(model.matrix(name), recipe).codes).mean() > 0.01, name


def test_routed_experts_are_rounded_to_the_nearest() -> None:
    recipe, windows = replace(recipe_of("w4a16"), group=16), RNG.integers(0, 272, (1, 24)).astype(np.int32)
    with open_model(DATA / "qwen3-moe-all") as model:
        selection = select(model.config, model.tensors, recipe, ())
        experts = {name for name in selection.matrices if ".experts." in name}
        assert experts
        layerwise = Layerwise(model.config, model.tensors, 24, lambda *_: None)
        rounding = Compensated(model, layerwise, recipe, selection, windows)
        for name in selection.matrices:
            same = (rounding(name).codes == round_matrix(model.matrix(name), recipe).codes).all()
            assert same == (name in experts), name
