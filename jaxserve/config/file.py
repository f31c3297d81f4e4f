"""Settings from a YAML file, under the names that flags have, with dashes or underscores; and settings as YAML again."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from jaxserve.config.vllm_arguments import instead_of
from jaxserve.errors import ConfigError


def read_settings(path: str, known: Collection[str]) -> dict[str, Any]:
    """The file's settings by name, of the types that YAML gave them.

    Args:
        path: a YAML file that holds one mapping, or nothing.
        known: the settings there are.

    Raises:
        ConfigError: the file cannot be read or is no such mapping, or a setting is unknown or there twice; names file and line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        loaded = yaml.load(text, _Loader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"config: cannot read {path}: {reason}", param="config") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"config: {path}: {_said(error)}", param="config") from error
    except RecursionError as error:
        raise ConfigError(f"config: {path} is nested too deeply", param="config") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"config: {path} must hold settings as NAME: VALUE, got {type(loaded).__name__}", param="config")
    settings: dict[str, Any] = {}
    for key, value in loaded.items():
        name = str(key).replace("-", "_")
        if name not in known:
            hint = instead_of(name) or "--help lists what there is"
            raise ConfigError(f"config: {path}: unknown setting {key!r}; {hint}", param="config")
        if name in settings:
            raise ConfigError(f"config: {path}: {key!r} is there twice", param="config")
        settings[name] = value
    return settings


def as_yaml(*configs: Any, changed_only: bool = False) -> str:
    """Settings of dataclasses as a file that `read_settings` reads. Keys are not among them.

    Args:
        configs: dataclasses made of `setting`s.
        changed_only: leave out what has its default.
    """
    shown: dict[str, Any] = {}
    for config in configs:
        for item in fields(config):
            value = getattr(config, item.name)
            if not item.metadata.get("flag", True) or (changed_only and value == item.default):
                continue
            shown[item.name.replace("_", "-")] = value
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=False) if shown else ""


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is there twice is a mistake, not the last word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is there twice", key_node.start_mark)
            if isinstance(key, Hashable):
                seen.add(key)
        return super().construct_mapping(node, deep)


def _said(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context}"
    return " ".join(str(error).split())
