"""Opens the weights of a model directory, in whichever format they are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from jaxserve.errors import CheckpointError
from jaxserve.models.sentence_transformers import dense_folders
from jaxserve.weights.checkpoint import Checkpoint
from jaxserve.weights.modules import ModuleTensors
from jaxserve.weights.orbax import OrbaxCheckpoint, find_orbax
from jaxserve.weights.renamed import named_as_decoder
from jaxserve.weights.safetensors import INDEX, SINGLE, SafetensorsCheckpoint

StoredFormat = Literal["auto", "safetensors", "orbax"]
LoadFormat = Literal["auto", "safetensors", "orbax", "dummy"]


def stored_format(directory: Path) -> Literal["safetensors", "orbax"]:
    """The format that a model directory's weights are in; safetensors if there are both.

    Raises CheckpointError: there are none.
    """
    if _has_safetensors(directory):
        return "safetensors"
    if find_orbax(directory) is not None:
        return "orbax"
    raise CheckpointError(f"{directory} has neither {SINGLE} nor {INDEX} nor an Orbax checkpoint", param="model")


def has_weights(directory: Path) -> bool:
    """Whether a directory has weights in either format."""
    return _has_safetensors(directory) or find_orbax(directory) is not None


def _has_safetensors(directory: Path) -> bool:
    return any((directory / name).is_file() for name in (SINGLE, INDEX))


def open_checkpoint(directory: Path, load_format: StoredFormat) -> Checkpoint:
    """The weights of a model directory; to be closed. Raises CheckpointError if there are none or they are damaged."""
    if load_format == "auto":
        load_format = stored_format(directory)
    if load_format == "safetensors":
        found = named_as_decoder(SafetensorsCheckpoint(directory))
        folders = dense_folders(directory)
        return ModuleTensors(found, folders) if folders else found
    folder = find_orbax(directory)
    if folder is None:
        raise CheckpointError(f"{directory} has no Orbax checkpoint", param="model")
    return OrbaxCheckpoint(folder)
