"""Arrays in the host's memory under the names of a checkpoint: parameters are read from them as from its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from jaxserve.weights.checkpoint import Block, Bounds
from jaxserve.weights.live.trees import Arrays
from jaxserve.weights.live.views import View, Views


class HostTensors:
    """See `Checkpoint`. What is read is a copy: whoever has the arrays may change them afterwards."""

    def __init__(self, arrays: Mapping[str, Block]) -> None:
        self._arrays = arrays
        self.shapes: Mapping[str, tuple[int, ...]] = {name: array.shape for name, array in arrays.items()}
        self.dtypes: Mapping[str, str] = {name: str(array.dtype) for name, array in arrays.items()}

    def reads_rows(self, name: str) -> bool:
        return True

    def file_of(self, name: str) -> Path | None:
        return None

    def read(self, name: str, bounds: Bounds) -> Block:
        return np.array(self._arrays[name][tuple(slice(*part) for part in bounds)], order="C")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


def host_tensors(arrays: Arrays, views: Views) -> HostTensors | None:
    """The arrays that views are of, if all that are there are in the host's memory, and are tensors as they are; else None."""
    here = {name: view for name, view in views.items() if view.name in arrays}
    if all(view == View(name, view.shape) and isinstance(arrays[name], np.ndarray) for name, view in here.items()):
        return HostTensors({name: arrays[name] for name in here})
    return None
