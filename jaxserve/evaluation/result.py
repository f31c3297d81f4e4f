"""The result of an evaluation: what the harness found, under a header that says of what and how; and its file."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath
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


def labels(results: Sequence[Result]) -> list[str]:
    """The models' names; where some are the same, with as many directories of their paths before them as that takes."""
    names = [result.name for result in results]
    paths = [PurePath(str(result.header["model"]["path"])).parts for result in results]
    for length in range(1, max(map(len, paths)) + 1):
        if len(set(names)) == len(names):
            return names
        twice = {name for name in names if names.count(name) > 1}
        names = ["/".join(path[-length:]) if name in twice else name for name, path in zip(names, paths, strict=True)]
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)]


def steps(names: Sequence[str]) -> list[int] | None:
    """The numbers that the names end in, as checkpoints of a training run do; None unless they only grow."""
    found = [re.search(r"(\d+)\D*$", name) for name in names]
    numbers = [int(match[1]) for match in found if match is not None]
    growing = all(first < second for first, second in pairwise(numbers))
    return numbers if len(numbers) == len(names) > 1 and growing else None
