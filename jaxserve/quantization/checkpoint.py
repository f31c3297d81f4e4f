"""Writes a checkpoint whose matrices are rounded, as compressed-tensors stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.models.checkpoint import read_hf_config, read_json_object
from jaxserve.models.config import DecoderConfig
from jaxserve.models.quantization import quantization_from_hf, quantizes_cache_alone
from jaxserve.models.registry import decoder_config, weight_rules
from jaxserve.quantization.recipes import Recipe
from jaxserve.quantization.rounding import Rounded, round_matrix, stored, stored_shapes
from jaxserve.quantization.selection import Selection
from jaxserve.weights.check import check_tensors, without_zero_biases
from jaxserve.weights.checkpoint import Block, Checkpoint, Tensors, whole
from jaxserve.weights.directory import CONFIG, Summing, Told, new_directory, write_beside
from jaxserve.weights.finite import is_finite
from jaxserve.weights.formats import open_checkpoint
from jaxserve.weights.manifest import Manifest, Quality, prompt_files, tokenizer_fingerprint, write_manifest
from jaxserve.weights.quantized.layout import Dequantized, Layout
from jaxserve.weights.safetensors_writer import FILE, TensorSpec, write_safetensors
from jaxserve.weights.stored_head import with_stored_head

Round = Callable[[str], Rounded]
"""A matrix of the checkpoint, rounded, by the tensor's name. Asked once for each, layer by layer."""
Judge = Callable[[Tensors], Quality]


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint whose weights are not quantized, while it is open.

    Attributes:
        path: its directory.
        config: what it is of.
        tensors: what it has.
        names: those that it is made of: without scales of KV caches.
    """

    path: Path
    config: DecoderConfig
    tensors: Checkpoint
    names: tuple[str, ...]

    def matrix(self, name: str) -> Block:
        """A whole matrix as it is stored. Raises CheckpointError for numbers that are not finite."""
        block = np.ascontiguousarray(self.tensors.read(name, whole(self.tensors.shapes[name])))
        if not is_finite(block):
            raise CheckpointError(f"{name} has weights that are NaN or infinite", param="model")
        return block


@contextmanager
def open_model(path: Path) -> Iterator[Model]:
    """Open a model directory that can be quantized.

    Raises:
        CheckpointError: it is damaged, or does not fit its configuration.
        ConfigError: its weights are quantized already.
    """
    hf = read_hf_config(path)
    method = hf.get("quantization_config")
    if method is not None and not (isinstance(method, dict) and quantizes_cache_alone(method)):
        named = method.get("quant_method") if isinstance(method, dict) else method
        raise ConfigError(f"model: {path} is quantized already ({named}); name the model that it was made from", param="model")
    config = with_stored_head(decoder_config(hf), path)
    with open_checkpoint(path, "auto") as tensors:
        layout = Layout.of(tensors.shapes, tensors.dtypes, quantization_from_hf(hf), config.dtype)
        rules = weight_rules(config)
        check_tensors(config, rules, without_zero_biases(tensors, rules, layout.shapes), layout.dtypes)
        yield Model(path, config, tensors, tuple(layout.shapes))


def nearest(model: Model, recipe: Recipe) -> Round:
    """Rounds each matrix to the nearest."""
    return lambda name: round_matrix(model.matrix(name), recipe)


def write_quantized(
    model: Model,
    output: Path,
    recipe: Recipe,
    selection: Selection,
    round_: Round,
    told: Told,
    *,
    judge: Judge | None = None,
    file_bytes: int = FILE,
) -> Manifest:
    """Write a model directory with matrices rounded. One tensor is in memory at a time, besides what `round_` holds.

    Args:
        model: where the numbers are.
        output: must not exist, or be empty. Nothing is left there if it fails.
        recipe: how matrices are stored.
        selection: which ones.
        round_: rounds them.
        told: of progress.
        judge: measures what was written, dequantized; None for nobody.
        file_bytes: largest file of weights.

    Returns:
        The manifest.

    Raises:
        CheckpointError: the source is damaged.
        ConfigError: an output that is there already.
    """
    tensors = model.tensors
    order = (*(name for name in model.names if name not in selection.matrices), *selection.matrices)
    parts = {name: _parts(tensors, name, recipe) for name in selection.matrices}
    specs = [spec for name in order for spec in parts.get(name, (TensorSpec(name, tensors.dtypes[name], tensors.shapes[name]),))]
    summing = Summing({spec.name: spec.shape for spec in specs}, {spec.name: spec.dtype for spec in specs}, told)

    def stream() -> Iterator[tuple[str, Block]]:
        for name in order:
            for part, tensor in _stored(model, name, recipe, round_ if name in parts else None):
                summing.add(part, tensor)
                yield part, tensor

    with new_directory(output):
        write_safetensors(output, specs, stream(), file_bytes)
        settings = recipe.settings(selection.ignored)
        write_beside(model.path, output, read_json_object(model.path / CONFIG) | {"quantization_config": settings})
        quality = None if judge is None else _judged(output, judge)
        manifest = Manifest.of(tokenizer_fingerprint(output), summing.sums, prompt_files(output), quality)
        write_manifest(output, manifest)
    return manifest


def _judged(output: Path, judge: Judge) -> Quality:
    with open_checkpoint(output, "safetensors") as written:
        layout = Layout.of(written.shapes, written.dtypes, quantization_from_hf(read_hf_config(output)), "float32")
        return judge(Dequantized(written, layout))


def _parts(tensors: Checkpoint, name: str, recipe: Recipe) -> Sequence[TensorSpec]:
    module = name.removesuffix("weight")
    shapes = stored_shapes(tensors.shapes[name], tensors.dtypes[name], recipe)
    return [TensorSpec(f"{module}{part}", dtype, shape) for part, (dtype, shape) in shapes.items()]


def _stored(model: Model, name: str, recipe: Recipe, round_: Round | None) -> Iterator[tuple[str, Block]]:
    """What is stored of a tensor: rounded, or as it is."""
    if round_ is None:
        yield name, model.tensors.read(name, whole(model.tensors.shapes[name]))
        return
    module = name.removesuffix("weight")
    for part, tensor in stored(round_(name), recipe).items():
        yield f"{module}{part}", tensor
