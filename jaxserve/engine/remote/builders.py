"""What an engine process builds, and how it is told to: by the name of a function and an argument of plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from jaxserve.engine.core import EngineCore
from jaxserve.engine.link import EngineDescription
from jaxserve.errors import ConfigError

BuildProgress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """An engine that is ready, what front ends are told of it, and what people are."""

    core: EngineCore
    description: EngineDescription
    banner: str


Builder = Callable[[Mapping[str, Any], BuildProgress], ServedEngine]


def find_builder(name: str) -> Builder:
    """The function that "package.module:function" names. It takes the argument, and whom to tell how far it is.

    Raises ConfigError if an environment variable of jax, which reads them when it is imported, has a value that it does not know.
    """
    module, _, function = name.partition(":")
    try:
        builder: Builder = getattr(import_module(module), function)
    except ValueError as error:
        raise ConfigError(f"jax cannot be imported: {error}") from error
    return builder
