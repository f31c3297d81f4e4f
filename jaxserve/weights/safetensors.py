"""A checkpoint's tensors in safetensors files: names, shapes, and any slice without reading the rest."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from jaxserve.errors import CheckpointError
from jaxserve.models.checkpoint import read_json_object

Block = npt.NDArray[Any]
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("F32", "F16", "BF16")


class SafetensorsCheckpoint:
    """The tensors of one directory, from `model.safetensors` or from the files that its index names.

    A context manager: the files are mapped while it is open. Reading is safe from several threads.

    Attributes:
        shapes: the shape of every tensor, by name.

    Raises:
        CheckpointError: no weights, a file that the index names but the directory lacks, a damaged file, or tensors
            that are not floating-point (a quantised checkpoint).
    """

    def __init__(self, directory: Path) -> None:
        self._open = ExitStack()
        self._tensors: dict[str, Any] = {}
        try:
            for path in shard_files(directory):
                self._add(path)
        except BaseException:
            self._open.close()
            raise
        self.shapes: Mapping[str, tuple[int, ...]] = {name: tuple(tensor.get_shape()) for name, tensor in self._tensors.items()}

    def __enter__(self) -> SafetensorsCheckpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._tensors.clear()
        self._open.close()

    def read(self, name: str, bounds: tuple[tuple[int, int], ...]) -> Block:
        """The block of a tensor between (start, stop) in every dimension, in the dtype of the file."""
        block: Block = self._tensors[name][tuple(slice(start, stop) for start, stop in bounds)]
        return block

    def _add(self, path: Path) -> None:
        try:
            handle = self._open.enter_context(safe_open(path, framework="numpy"))
            tensors = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged: {error}", param="model") from error
        odd = [f"{name} ({t.get_dtype()})" for name, t in tensors.items() if t.get_dtype() not in FLOATS]
        if odd:
            raise CheckpointError(
                f"{path} has tensors that are not {', '.join(FLOATS)}: {', '.join(odd[:8])}"
                + (f" and {len(odd) - 8} more" if len(odd) > 8 else ""),
                param="model",
            )
        self._tensors |= tensors


def shard_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint directory, in order of name.

    Raises:
        CheckpointError: there are none, the index is damaged, or a file that it names is missing.
    """
    index, single = directory / INDEX, directory / SINGLE
    if not index.is_file():
        if not single.is_file():
            raise CheckpointError(f"{directory} has neither {SINGLE} nor {INDEX}", param="model")
        return [single]
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map from tensors to files", param="model")
    names = sorted(set(weight_map.values()))
    # Only plain names: an index must not reach outside its own directory.
    missing = [name for name in names if Path(name).name != name or not (directory / name).is_file()]
    if missing:
        raise CheckpointError(f"{directory} lacks files that {INDEX} names: {', '.join(missing)}", param="model")
    return [directory / name for name in names]
