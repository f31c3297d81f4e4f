"""Parameters as they are held, and as the same checkpoint has them where all is dequantized."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxserve.models.binding import Params
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.weights import packed
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.stored_schemes import stored_schemes
from pallas_kernels.matmul import Matrix
from pallas_kernels.registry import Target
from sharding import make_mesh


@dataclass(frozen=True)
class Loaded:
    params: Params
    shapes: Params


def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters are held as for one, or for several; the words themselves lie anywhere."""
    monkeypatch.setattr(packed, "Target", SimpleNamespace(of=lambda _: Target("gpu", (9, 0))))


def is_matrix(leaf: Any) -> bool:
    return isinstance(leaf, Matrix)


def packer_of(directory: Path, devices: int, quantization: Any) -> Packer:
    config = decoder_config(read_hf_config(directory))
    return Packer(config, make_mesh(devices), quantization, stored_schemes(directory, config, "auto"))


def planned(directory: Path, dtype: str, devices: int, quantization: Any) -> Params:
    """Shapes alone."""
    config = decoder_config(read_hf_config(directory))
    return packer_of(directory, devices, quantization).shapes(placed_params(config, make_mesh(devices), dtype))


def loaded(directory: Path, dtype: str = "float32", devices: int = 1, quantization: Any = "none", **more: Any) -> Loaded:
    config, mesh = decoder_config(read_hf_config(directory)), make_mesh(devices)
    packer = packer_of(directory, devices, quantization)
    params = load_params(directory, config, mesh, dtype, packer=packer, **more)
    return Loaded(params, packer.shapes(placed_params(config, mesh, dtype)))


_numbers = jax.jit(Matrix.plain)  # one program for all matrices of a shape, not one for each of its operations


def plain(params: Any) -> Any:
    """Each matrix's numbers, of a tree or of one matrix."""
    return jax.tree.map(lambda leaf: _numbers(leaf) if is_matrix(leaf) else leaf, params, is_leaf=is_matrix)


def dequantized(directory: Path, dtype: str = "float32") -> Params:
    return load_params(directory, decoder_config(read_hf_config(directory)), make_mesh(1), dtype)


def schemes(params: Params) -> set[str]:
    return {leaf.scheme.name for leaf in jax.tree.leaves(params, is_leaf=is_matrix) if is_matrix(leaf)}
