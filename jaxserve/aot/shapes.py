"""Decoders by name: a checkpoint's own, or one of a shape that the planner knows."""

from __future__ import annotations

from pathlib import Path

from jaxserve.errors import ConfigError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import MODEL_TYPES, decoder_config
from jaxserve.planner import catalogue


def decoder(name: str, layers: int | None) -> DecoderConfig:
    """The decoder of a checkpoint directory, or of a planner's shape, cut to its first `layers` layers if given.

    Raises:
        ConfigError: no such shape and no such directory, or more layers than it has.
        UnsupportedModelError: a config.json with values that jaxserve does not implement.
        CheckpointError: a config.json that cannot be read.
    """
    config = decoder_config(read_hf_config(Path(name))) if Path(name).is_dir() else known_decoder(name)
    if layers is None:
        return config
    if layers > config.num_layers:
        raise ConfigError(f"layers is {layers}, but {name} has {config.num_layers}", param="layers")
    return config.first(layers)


def known_decoder(name: str) -> DecoderConfig:
    """The decoder of a model that the planner knows by name, in bfloat16.

    Raises ConfigError if there is no such model.
    """
    hf = catalogue.known_config(name)
    if hf is None:
        raise ConfigError(
            f"{name!r} is neither a checkpoint directory nor one of {', '.join(catalogue.model_names())}", param="model"
        )
    return decoder_config({**hf, "architectures": [MODEL_TYPES[hf["model_type"]]], "dtype": "bfloat16"})
