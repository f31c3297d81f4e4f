"""Seeded trees of arrays as trainers hold them, and the same weights as a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from jaxserve.models.registry import decoder_config, weight_rules
from jaxserve.weights.checkpoint import Block

Tensors = dict[str, Block]


def random_tensors(hf: dict[str, Any], seed: int, dtype: Any = np.float32) -> Tensors:
    """Every tensor of a checkpoint of such a config.json, under Hugging Face's name."""
    rng = np.random.default_rng(seed)
    shapes = {source.name: source.stored_shape for rule in weight_rules(decoder_config(hf)) for source in rule.sources}
    return {name: (rng.standard_normal(shape) * 0.3).astype(dtype) for name, shape in shapes.items()}


def write_checkpoint(directory: Path, hf: dict[str, Any], tensors: Tensors) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(hf))
    save_file(tensors, directory / "model.safetensors")
    return directory


def on_devices(tensors: Tensors) -> dict[str, jax.Array]:
    return {name: jax.device_put(tensor) for name, tensor in tensors.items()}


def same(left: Any, right: Any) -> bool:
    """Whether two trees of parameters are held the same, bit for bit: structure, dtypes, shardings and numbers."""
    if str(jax.tree.structure(left)) != str(jax.tree.structure(right)):
        return False
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(
        a.dtype == b.dtype and a.sharding == b.sharding and np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs
    )
