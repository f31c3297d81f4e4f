"""The audit: errors and perplexities against computations of their own, and what is kept for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jaxserve.quantization.audit import Measure, Restored, increase, judge, propose
from jaxserve.quantization.calibration import Calibration
from jaxserve.quantization.checkpoint import Model, nearest, open_model, write_quantized
from jaxserve.quantization.layerwise import Layerwise, perplexity
from jaxserve.quantization.recipes import Recipe, recipe_of
from jaxserve.quantization.rounding import restored, round_matrix
from jaxserve.quantization.selection import select
from jaxserve.weights.manifest import Quality, read_manifest
from tests.golden.reading import DATA, forward, load, logits_of
from tests.support.tiers import tiered

WINDOW = 24
WINDOWS = np.random.default_rng(5).integers(0, 272, (4, WINDOW)).astype(np.int32)
CALIBRATION = Calibration("beef", WINDOWS[:2], WINDOWS[2:])
QKV = ("layers", "0", "attention", "qkv")


@pytest.fixture
def llama() -> Iterator[Model]:
    with open_model(DATA / "llama-linear") as model:
        yield model


def measure_of(model: Model, recipe: Recipe) -> Measure:
    layerwise = Layerwise(model.config, model.tensors, WINDOW, lambda *_: None)
    return Measure(model.config, model.tensors, layerwise, recipe)


def perplexity_of(directory: Path, windows: np.ndarray) -> float:
    """By the whole model at once, in float64 from its logits on."""
    run, losses = forward(*load(directory)), []
    for window in windows.tolist():
        logits = logits_of(run, window)[:-1].astype(np.float64)
        logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        losses += [-logs[at, token] for at, token in enumerate(window[1:])]
    return float(np.exp(np.mean(losses)))


# Windows and caps, sinks and biases of experts, latents and groups of experts with a shared one.
MODELS = ("llama-linear", "gemma2-caps", "gpt-oss-window", "deepseek-v3-groups", "qwen2-moe-shared")


@pytest.mark.parametrize("name", tiered(MODELS, {"gemma2-caps", "gpt-oss-window", "deepseek-v3-groups"}))
def test_a_model_run_by_layers_is_the_model(name: str) -> None:
    with open_model(DATA / name) as model:
        layerwise = Layerwise(model.config, model.tensors, WINDOW, lambda *_: None)
        losses = layerwise.run(WINDOWS, lambda number: layerwise.read_layer(model.tensors, number))
    assert losses.shape == (4, WINDOW - 1)
    assert perplexity(losses) == pytest.approx(perplexity_of(DATA / name, WINDOWS), rel=1e-4)


def first_products(model: Model, recipe: Recipe, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the first layer's queries, keys and values, and what they become, in float64."""

    def exact(name: str) -> np.ndarray:
        return model.matrix(f"model.{name}.weight").astype(np.float64)

    x = exact("embed_tokens")[windows.reshape(-1)]
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + model.config.norm_eps) * exact("layers.0.input_layernorm")
    steps = np.abs(x).max(axis=-1, keepdims=True)
    rows = x
    if recipe.name == "fp8":
        rows = (x / steps * 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * steps / 448
    if recipe.name == "w8a8":
        rows = np.rint(np.clip(x / (steps / 127.5), -128, 127)) * (steps / 127.5)
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    matrices = np.concatenate([model.matrix(name) for name in names]).astype(np.float64)
    rounded = np.concatenate([restored(round_matrix(model.matrix(name), recipe), recipe) for name in names]).astype(np.float64)
    return x @ matrices.T, rows @ rounded.T


@pytest.mark.parametrize("recipe", [recipe_of("fp8"), recipe_of("w8a8"), recipe_of("w4a16", 32)], ids=lambda recipe: recipe.name)
def test_errors_of_products_are_those_of_numpy(llama: Model, recipe: Recipe) -> None:
    selection = select(llama.config, llama.tensors, recipe, ())
    rounded = Restored(llama, recipe, selection.matrices.keys())
    _, errors = measure_of(llama, recipe).errors(rounded, selection.units().keys(), WINDOWS)
    y, z = first_products(llama, recipe, WINDOWS)
    assert len(errors) == 8
    assert errors[QKV].relative == pytest.approx(np.linalg.norm(y - z) / np.linalg.norm(y), rel=2e-2)
    assert 1 - errors[QKV].cosine == pytest.approx(1 - (y * z).sum() / np.linalg.norm(y) / np.linalg.norm(z), rel=5e-2)
    assert errors[QKV].largest == pytest.approx(np.abs(y - z).max(), rel=0.2)  # one row may round the other way


def test_errors_of_experts_are_those_of_their_weights() -> None:
    recipe = recipe_of("int8")
    with open_model(DATA / "qwen3-moe-some") as model:
        selection = select(model.config, model.tensors, recipe, ())
        _, errors = measure_of(model, recipe).errors(
            Restored(model, recipe, selection.matrices.keys()), selection.units().keys(), WINDOWS[:1]
        )
        unit = ("layers", "1", "mlp")
        before = [model.matrix(name).astype(np.float32) for name in selection.units()[unit]]
        after = [restored(round_matrix(model.matrix(name), recipe), recipe) for name in selection.units()[unit]]
    apart = sum(float(((one - other) ** 2).sum()) for one, other in zip(before, after, strict=True))
    assert errors[unit].relative == pytest.approx(np.sqrt(apart / sum(float((one**2).sum()) for one in before)), rel=1e-4)


def quantized(model: Model, recipe: Recipe, output: Path) -> Quality:
    selection, measure = select(model.config, model.tensors, recipe, ("*.0.*.down_proj",)), measure_of(model, recipe)
    manifest = write_quantized(
        model,
        output,
        recipe,
        selection,
        nearest(model, recipe),
        lambda *_: None,
        judge=lambda rounded: judge(measure, recipe, selection, CALIBRATION, rounded),
    )
    assert read_manifest(output) == manifest
    assert manifest.quality is not None
    return manifest.quality


def test_what_a_manifest_says_is_what_its_checkpoint_does(llama: Model, tmp_path: Path) -> None:
    quality = quantized(llama, recipe_of("w4a16", 32), tmp_path / "out")
    before, after = (perplexity_of(path, CALIBRATION.measuring) for path in (llama.path, tmp_path / "out"))
    assert quality.perplexity_before == pytest.approx(before, rel=1e-4)
    assert quality.perplexity_after == pytest.approx(after, rel=1e-4)
    assert quality.increase_percent == pytest.approx(100 * (after - before) / before, abs=0.02)
    assert (quality.scheme, quality.calibration, quality.tokens) == ("w4a16", "beef", 2 * (WINDOW - 1))
    assert quality.kept == ("model.layers.0.mlp.down_proj",)
    assert len(quality.errors) == 7
    assert all(0 < error.relative < 0.3 and 0.95 < error.cosine < 1 for error in quality.errors.values())


def test_the_fewest_are_kept_that_the_budget_needs(llama: Model) -> None:
    recipe = recipe_of("w4a16", 32)
    measure, selection = measure_of(llama, recipe), select(llama.config, llama.tensors, recipe, ())

    def after(kept: int) -> float:
        units = selection.units().keys() - set(order[:kept])
        names = {name for name, unit in selection.matrices.items() if unit in units}
        return perplexity(measure.losses(Restored(llama, recipe, names), units, WINDOWS))

    everything = propose(llama, measure, recipe, selection, WINDOWS, 1e9)
    assert everything.selection == selection
    assert everything.after == everything.proposed
    order = list(everything.alone)
    assert sorted(order, key=lambda unit: -everything.alone[unit]) == order
    steps = [increase(everything.before, after(kept)) for kept in range(len(order))]
    budget = (steps[0] + min(steps)) / 2
    some = propose(llama, measure, recipe, selection, WINDOWS, budget)
    kept = len(selection.units()) - len(some.selection.units())
    assert kept > 0
    assert set(selection.units()) - set(some.selection.units()) == set(order[:kept])
    assert increase(some.before, some.proposed) == pytest.approx(steps[kept], abs=1e-3)
    assert steps[kept] <= budget < steps[kept - 1]
    assert set(some.selection.kept.values()) == {f"a budget of {budget:g} % more perplexity"}
    assert set(some.selection.kept) < set(some.selection.ignored)
