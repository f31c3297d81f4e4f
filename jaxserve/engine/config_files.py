"""The description of a model that a program has, as the directory that a checkpoint would have it in."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from jaxserve.errors import ConfigError
from jaxserve.models.registry import MODEL_TYPES


class ConfigFiles:
    """A directory with config.json: one that there is, or one that goes with this object.

    Attributes:
        directory: the directory.
        name: of the model, where there was no directory that has one.

    Args:
        config: a directory with config.json, its content, or a transformers.PretrainedConfig.

    Raises ConfigError for anything else.
    """

    def __init__(self, config: Any) -> None:
        self.name: str | None = None
        if isinstance(config, str | Path):
            self.directory = Path(config)
            return
        content = _content(config)
        self.name = Path(str(content.get("_name_or_path") or content.get("model_type") or "model")).name
        self.directory = Path(mkdtemp(prefix="jaxserve-config-"))
        weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)
        (self.directory / "config.json").write_text(json.dumps(content), encoding="utf-8")


def _content(config: Any) -> dict[str, Any]:
    """What config.json has, the architecture filled in where only `model_type` is there."""
    given = config if isinstance(config, Mapping) else getattr(config, "to_dict", lambda: None)()
    if not isinstance(given, Mapping):
        raise ConfigError(
            "config must be the content of a config.json, a transformers.PretrainedConfig or a directory with config.json, "
            f"not {type(config).__name__}",
            param="config",
        )
    content = {
        key: str(value).removeprefix("torch.") if key in ("dtype", "torch_dtype") else value for key, value in given.items()
    }
    named = content.get("model_type")
    if not content.get("architectures") and named in MODEL_TYPES:
        content["architectures"] = [MODEL_TYPES[str(named)]]
    return content
