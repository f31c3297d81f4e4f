"""Reads the description of a model from a checkpoint directory in Hugging Face format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.text_part import text_part

_OF_AWQ = {"w_bit": "bits", "q_group_size": "group_size"}  # fields of its own file, and what they are called in config.json


def read_hf_config(model_dir: str | Path) -> dict[str, Any]:
    """The parsed config.json of a checkpoint directory; of a model for images and sound that of its decoder (`text_part`).

    `eos_token_id` of generation_config.json, where that file has one, replaces config.json's: it is what generation
    stops at (chat models list their end-of-turn tokens only there). What ModelOpt's hf_quant_config.json, AutoGPTQ's
    quantize_config.json or AWQ's quant_config.json says becomes a `quantization_config`, where config.json has none.

    Raises CheckpointError: no such directory, no config.json, or a file that is not a JSON object.
    """
    directory = Path(model_dir)
    if not directory.is_dir():
        raise CheckpointError(f"there is no checkpoint directory {directory}", param="model")
    path = directory / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{directory} has no config.json: not a checkpoint in Hugging Face format", param="model")
    config = text_part(read_json_object(path))
    generation = directory / "generation_config.json"
    if generation.is_file():
        eos = read_json_object(generation).get("eos_token_id")
        if eos is not None:
            config["eos_token_id"] = eos
    if config.get("quantization_config") is None and (method := _quantization_beside(directory)) is not None:
        config["quantization_config"] = method
    return config


def _quantization_beside(directory: Path) -> dict[str, Any] | None:
    """What a file beside config.json says of quantization, as a `quantization_config` has it."""
    if (path := directory / "hf_quant_config.json").is_file():
        return {**read_json_object(path).get("quantization", {}), "quant_method": "modelopt"}
    if (path := directory / "quantize_config.json").is_file():
        return {"quant_method": "gptq", **read_json_object(path)}
    if (path := directory / "quant_config.json").is_file():
        return {"quant_method": "awq", **{_OF_AWQ.get(name, name): value for name, value in read_json_object(path).items()}}
    return None


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a checkpoint.

    Raises CheckpointError: the file cannot be read, or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}", param="model") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}", param="model")
    return value
