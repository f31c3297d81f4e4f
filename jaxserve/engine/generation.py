"""Reads what generation_config.json recommends for requests that do not say how to sample."""

from __future__ import annotations

from pathlib import Path

from jaxserve.config.fields import ModelConfig
from jaxserve.models.checkpoint import read_json_object
from jaxserve.sampling.defaults import NO_DEFAULTS, SamplingDefaults, defaults_from_hf


def generation_defaults(config: ModelConfig, directory: Path) -> tuple[SamplingDefaults, int | None]:
    """The checkpoint's sampling defaults, and how many tokens it generates where nobody says; none if not wanted.

    Raises CheckpointError for a damaged file or a value that no request may have.
    """
    path = directory / "generation_config.json"
    if config.generation_config == "none" or not path.is_file():
        return NO_DEFAULTS, None
    return defaults_from_hf(read_json_object(path), str(path))
