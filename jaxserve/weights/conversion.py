"""Converts a checkpoint to a model directory with Orbax weights, and writes manifests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.models.checkpoint import read_hf_config, read_json_object
from jaxserve.models.config import DecoderConfig
from jaxserve.models.quantization import quantization_from_hf
from jaxserve.models.registry import decoder_config, weight_rules
from jaxserve.weights.check import check_tensors, without_zero_biases
from jaxserve.weights.checkpoint import Block, Bounds, Checkpoint, Tensors, whole
from jaxserve.weights.directory import CONFIG, Summing, Told, new_directory, write_beside
from jaxserve.weights.finite import is_finite
from jaxserve.weights.formats import open_checkpoint
from jaxserve.weights.manifest import MANIFEST, Manifest, measured_quality, prompt_files, tokenizer_fingerprint, write_manifest
from jaxserve.weights.maxtext import MaxTextCheckpoint, RopePairs, usual_rope
from jaxserve.weights.orbax import FOLDER, OrbaxCheckpoint, find_orbax
from jaxserve.weights.orbax_writer import LazyTensor, write_orbax
from jaxserve.weights.quantized.layout import Dequantized, Layout
from jaxserve.weights.stacked_experts import with_own_experts
from jaxserve.weights.stored_head import with_stored_head
from jaxserve.weights.tensor_error import naming_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What to convert.

    Attributes:
        path: a model directory, or a checkpoint of MaxText.
        kind: which of them.
        config: the config.json; that of the model directory if None. What a tokenizer consists of lies beside it.
        rope: which elements of a head MaxText's rotary embedding turns together; None for what it does with such a config.json.
    """

    path: Path
    kind: Literal["hf", "maxtext"] = "hf"
    config: Path | None = None
    rope: RopePairs | None = None

    def __post_init__(self) -> None:
        if self.kind == "maxtext" and self.config is None:
            raise ConfigError(
                "config: a checkpoint of MaxText does not say what model it is of; name a config.json", param="config"
            )
        if self.kind == "hf" and self.rope is not None:
            raise ConfigError("maxtext_rope is for checkpoints of MaxText", param="maxtext_rope")

    @property
    def config_file(self) -> Path:
        return self.config or self.path / CONFIG

    def open(self, config: DecoderConfig) -> Checkpoint:
        if self.kind == "hf":
            return open_checkpoint(self.path, "auto")
        found = find_orbax(self.path)
        if found is None:
            raise CheckpointError(f"{self.path} has no Orbax checkpoint", param="source")
        return MaxTextCheckpoint(OrbaxCheckpoint(found), config, self.rope or usual_rope(config))


def convert(source: Source, output: Path, dtype: str | None, told: Told) -> Manifest:
    """Write a model directory with Orbax weights and a manifest. One tensor is in memory at a time.

    Weights are stored as checkpoints have them, an array for each tensor: nothing depends on devices, so any mesh loads them.

    Args:
        source: what to convert.
        output: must not exist, or be empty. Nothing is left there if it fails.
        dtype: of the weights written, which dequantizes those that are quantized; None to leave everything as it is.
        told: of progress.

    Returns:
        The manifest.

    Raises:
        CheckpointError: the source is damaged or does not fit its configuration.
        ConfigError: an output that is there already.
    """
    if not source.path.is_dir():
        raise ConfigError(f"source: there is no directory {source.path}", param="source")
    hf = read_hf_config(source.path) if source.config is None else read_json_object(source.config)
    config = with_stored_head(decoder_config(hf), source.path)
    with source.open(config) as opened, naming_files(opened):
        checkpoint = with_own_experts(opened, weight_rules(config))
        quantization = quantization_from_hf(hf)
        logical = Layout.of(checkpoint.shapes, checkpoint.dtypes, quantization, dtype or config.dtype)
        rules = weight_rules(config)
        check_tensors(config, rules, without_zero_biases(checkpoint, rules, logical.shapes), logical.dtypes)
        stored = Layout.of(checkpoint.shapes, checkpoint.dtypes, None if dtype is None else quantization, dtype or config.dtype)
        tensors: Tensors = Dequantized(checkpoint, stored)
        if dtype is not None:
            tensors, stored = _Cast(tensors, dtype), Layout(stored.shapes, dict.fromkeys(stored.shapes, dtype), {})
        with new_directory(output):
            summing = Summing(stored.shapes, stored.dtypes, told)
            lazy = (LazyTensor(name, _reading(tensors, name, shape)) for name, shape in stored.shapes.items())
            write_orbax(output / FOLDER, lazy, summing.add)
            write_beside(source.config_file.parent, output, _config(source.config_file, dtype))
            quality = measured_quality(source.path, summing.sums)
            manifest = Manifest.of(tokenizer_fingerprint(output), summing.sums, prompt_files(output), quality)
            write_manifest(output, manifest)
    return manifest


def make_manifest(directory: Path, told: Told) -> Manifest:
    """Write the manifest of a model directory from what lies there now, tensors and tokenizer; returns it.

    Raises:
        CheckpointError: no weights, or damaged ones.
        ConfigError: the directory cannot be written to.
    """
    with open_checkpoint(directory, "auto") as checkpoint:
        summing = Summing(checkpoint.shapes, checkpoint.dtypes, told)
        for name, shape in checkpoint.shapes.items():
            summing.add(name, checkpoint.read(name, whole(shape)))
    quality = measured_quality(directory, summing.sums)
    manifest = Manifest.of(tokenizer_fingerprint(directory), summing.sums, prompt_files(directory), quality)
    try:
        write_manifest(directory, manifest)
    except OSError as error:
        raise ConfigError(f"cannot write {directory / MANIFEST}: {error.strerror}", param="source") from error
    return manifest


class _Cast:
    def __init__(self, tensors: Tensors, dtype: str) -> None:
        self._tensors = tensors
        self._dtype = np.dtype(dtype)

    def read(self, name: str, bounds: Bounds) -> Block:
        """See `Tensors`. Raises CheckpointError for numbers that are too large for the dtype."""
        block = self._tensors.read(name, bounds)
        with np.errstate(over="ignore"):
            cast = block.astype(self._dtype, copy=False)
        if not is_finite(np.ascontiguousarray(cast)):
            raise CheckpointError(f"{name} has weights that are NaN, infinite, or too large for {self._dtype}", param="dtype")
        return cast


def _reading(tensors: Tensors, name: str, shape: tuple[int, ...]) -> Callable[[], Block]:
    return lambda: np.ascontiguousarray(tensors.read(name, whole(shape)))


def _config(file: Path, dtype: str | None) -> dict[str, Any]:
    """What config.json becomes: it says the new dtype."""
    config = read_json_object(file)
    if dtype is not None:
        config.pop("quantization_config", None)
        config.pop("torch_dtype", None)
        config["dtype"] = dtype
    return config
