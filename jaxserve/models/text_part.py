"""The decoder of a model for images and sound: its config.json is within the model's, its tensors are among others.

Transformers 4 names them language_model.model.layers..., transformers 5 model.language_model.layers...
"""

from __future__ import annotations

import re
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

    Tensors of other parts are left out; what is of no known part, or another tensor has the name of, keeps its name.
    """
    stored = list(names)
    if not any(name.startswith(tuple(PREFIXES)) for name in stored):
        return None
    found: dict[str, str] = {}
    for name in stored:
        if not name.removeprefix("model.").startswith(OTHER_PARTS):
            found[name if (plain := _plain(name)) in found else plain] = name
    return found


def _plain(name: str) -> str:
    for prefix, plain in PREFIXES.items():
        if name.startswith(prefix):
            return plain + name.removeprefix(prefix)
    return name


def _of_text(field: str, value: Any) -> Any:
    """What a field of a quantization_config says, with names of the decoder's modules alone."""
    if field in MODULES:
        return _plain_modules(value)
    if field != "config_groups" or not isinstance(value, dict):
        return value
    return {
        name: {**group, "targets": _plain_modules(group.get("targets"))} if isinstance(group, dict) else group
        for name, group in value.items()
    }


def _plain_modules(modules: Any) -> Any:
    if not isinstance(modules, list):
        return modules
    return [_plain_pattern(one) if isinstance(one, str) else one for one in modules]


def _plain_pattern(module: str) -> str:
    """A name, or behind "re:" a regular expression, which may spell what is before a decoder's names or match it somehow."""
    if not module.startswith("re:"):
        return _plain(module)
    spelled = re.sub(r"(model\\?\.)?language_model\\?\.(?![*+?{])(model\\?\.)?", r"(?:model\\.)?", module)
    return spelled.replace("language_model", "(?:model|lm_head)")
