"""The result of an evaluation: what the harness found, under a header that says of what and how; and its file."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxserve.errors import ConfigError

FORMAT = 1
HEADER = "jaxserve"
CHECKPOINTS = "checkpoints"  # of a comparison: the results that it compares


@dataclass(frozen=True, slots=True)
class Result:
    """One model on some tasks.

    Attributes:
        header: model, versions, settings, seconds, tokens, notes, and the values of every document, for comparisons.
        harness: what lm-eval returns: "results", "groups", "configs", "versions" and so on.
    """

    header: dict[str, Any]
    harness: dict[str, Any]

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.header["model"]["name"])

    def as_dict(self) -> dict[str, Any]:
        """What its file holds: the harness's own keys, and the header under a key of ours."""
        return {HEADER: self.header, **self.harness}


def read_results(path: Path) -> list[Result]:
    """The result of a file, or those of a comparison. Raises ConfigError for anything else."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", param="compare") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}", param="compare") from error
    documents = document[CHECKPOINTS] if isinstance(document, dict) and CHECKPOINTS in document else [document]
    return [_result(path, entry) for entry in documents]


def _result(path: Path, document: Any) -> Result:
    header = document.get(HEADER) if isinstance(document, dict) else None
    if not isinstance(header, dict) or header.get("format") != FORMAT or "results" not in document:
        raise ConfigError(f"{path} is no result of this version of jaxserve.eval", param="compare")
    return Result(header, {name: value for name, value in document.items() if name != HEADER})


def require_writable(path: Path, param: str) -> None:
    """Raise ConfigError unless a file can be put there: better before the work than after it."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a directory", param=param)
    if not folder.is_dir():
        raise ConfigError(f"cannot write {path}: there is no directory {folder}", param=param)
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"cannot write {path}: no permission for {folder}", param=param)


def write_atomically(path: Path, document: Mapping[str, Any]) -> None:
    """Write JSON so that the file is the old one or the new one, never half of it. Raises ConfigError if it cannot be written."""
    text = json.dumps(plain(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.absolute().parent, delete=False) as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                os.chmod(file.name, 0o666 & ~_umask())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", param="output") from error


def plain(value: Any) -> Any:
    """A value as JSON has it: tasks give numpy's numbers, sets and functions too. What is not a number becomes null."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(entry) for entry in value]
    return str(value)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
