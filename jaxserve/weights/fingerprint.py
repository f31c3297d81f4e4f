"""The name of a model's numbers: the same on every machine that has a copy of the checkpoint."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from jaxserve.config.fields import ModelConfig
from jaxserve.models.config import DecoderConfig
from jaxserve.weights.formats import LoadFormat, stored_format
from jaxserve.weights.orbax import find_orbax

_SAMPLE = 2**20  # bytes of a file's beginning (names and shapes) and end (weights) that are looked at


def model_fingerprint(model_dir: Path, config: DecoderConfig, asked: ModelConfig) -> str:
    """Sixteen hex digits that differ, as a rule, between models: fine-tunes of one model among them.

    Weight files are told apart by name, size, beginning and end: reading all of a large model would take minutes.

    Args:
        model_dir: checkpoint directory.
        config: the decoder.
        asked: where the numbers come from, the seed that dummy ones follow from, and what they are rounded to.
    """
    state = hashlib.blake2b(repr(config).encode(), digest_size=8)
    if asked.quantization != "none":
        state.update(f"{asked.quantization} ".encode())
    if asked.load_format == "dummy":
        state.update(f"dummy {asked.seed}".encode())
        return state.hexdigest()
    for path in _files(model_dir, asked.load_format):
        size = path.stat().st_size
        state.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            state.update(file.read(_SAMPLE))
            file.seek(-min(size, _SAMPLE), os.SEEK_END)
            state.update(file.read(_SAMPLE))
    return state.hexdigest()


def _files(directory: Path, load_format: LoadFormat) -> list[Path]:
    """The files of the weights, in order of name. Orbax gives its data files names of their own in every checkpoint it writes."""
    if load_format == "auto":
        load_format = stored_format(directory)
    if load_format == "orbax":
        found = find_orbax(directory)
        return [] if found is None else sorted(path for path in found.rglob("*") if path.is_file())
    return sorted(directory.glob("*.safetensors"))
