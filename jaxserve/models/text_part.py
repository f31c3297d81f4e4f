"""The decoder of a model for images and sound: its config.json is within the model's, its tensors are among others.

Transformers 4 names them language_model.model.layers..., transformers 5 model.language_model.layers...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.models.registry import MODEL_TYPES

INNER = "text_config"
# Fields that may be beside the inner config, for all parts of the model; one of them decides, whatever is within.
SHARED = ("dtype", "torch_dtype", "eos_token_id", "quantization_config")
TIED = "tie_word_embeddings"
# Of a quantization_config: names of modules, which may be those of the whole model.
MODULES = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules")
PREFIXES: Mapping[str, str] = MappingProxyType(
    {"language_model.model.": "model.", "model.language_model.": "model.", "language_model.lm_head": "lm_head"}
)
# What else such a checkpoint has, with or without "model." before it.
OTHER_PARTS = (
    "vision_tower",
    "vision_model",
    "vision_embedder",
    "visual",
    "audio_tower",
    "multi_modal_projector",
    "embed_vision",
    "embed_audio",
)


def text_part(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a model's decoder: the file's own content, or what is within, if that is of a known family."""
    inner = hf.get(INNER)
    architecture = MODEL_TYPES.get(str(inner.get("model_type"))) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or architecture is None:
        return dict(hf)
    shared = {name: hf[name] for name in SHARED if name in hf}
    own = {name: value for name, value in inner.items() if value is not None or name not in shared}
    config = {**shared, **own, "architectures": [architecture]}
    if hf.get(TIED) is not None:
        config[TIED] = hf[TIED]
    if isinstance(quantization := config.get("quantization_config"), dict):
        config["quantization_config"] = {name: _of_text(name, value) for name, value in quantization.items()}
    return config


def text_names(names: Iterable[str]) -> dict[str, str] | None:
    """The stored name of each tensor of the decoder, by the name that it has in a checkpoint of a decoder; None for such a one.

    Tensors of other parts are left out; what is of no known part keeps its name.
    """
    stored = list(names)
    if not any(name.startswith(tuple(PREFIXES)) for name in stored):
        return None
    return {_plain(name): name for name in stored if not name.removeprefix("model.").startswith(OTHER_PARTS)}


def _plain(name: str) -> str:
    for prefix, plain in PREFIXES.items():
        if name.startswith(prefix):
            return plain + name.removeprefix(prefix)
    return name


def _of_text(field: str, value: Any) -> Any:
    if field not in MODULES or not isinstance(value, list):
        return value
    return [_plain(module) if isinstance(module, str) else module for module in value]
