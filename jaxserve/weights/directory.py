"""A model directory that is being written: whole or not at all, with what lies beside weights, and the sums of its tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from jaxserve.errors import ConfigError
from jaxserve.weights.checkpoint import Block
from jaxserve.weights.manifest import TensorSum

Told = Callable[[int, int], None]
"""Told of bytes done and bytes in all."""
CONFIG = "config.json"
COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "vocab.json",
    "merges.txt",
)
"""What a model directory has beside configuration and weights."""


class Summing:
    """Sums up tensors that pass by."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str], told: Told) -> None:
        self.sums: dict[str, TensorSum] = {}
        self._total = sum(prod(shape) * np.dtype(dtypes[name]).itemsize for name, shape in shapes.items())
        self._done = 0
        self._told = told

    def add(self, name: str, tensor: Block) -> None:
        self.sums[name] = TensorSum.of(tensor)
        self._done += tensor.nbytes
        self._told(self._done, self._total)


def require_new(path: Path) -> None:
    """Raise ConfigError if something is there that is no empty directory."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"output: {path} is there already and not empty", param="output")


@contextmanager
def new_directory(path: Path) -> Iterator[None]:
    """Make a directory; take it away again if what is done with it fails."""
    require_new(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise ConfigError(f"output: cannot write {path}: {error.strerror or error}", param="output") from error
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def write_beside(source: Path, output: Path, config: Mapping[str, Any]) -> None:
    """Write config.json, and copy what else belongs to a model from the directory it came from."""
    (output / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for path in sorted(path for pattern in COPIED for path in source.glob(pattern) if path.is_file()):
        copy = output / path.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)
