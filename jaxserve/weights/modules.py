"""Tensors that modules of sentence-transformers have in folders of their own, beside the model's: `2_Dense/linear.weight`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from jaxserve.weights.checkpoint import Block, Bounds, Checkpoint
from jaxserve.weights.safetensors import SafetensorsCheckpoint


class ModuleTensors:
    """A model's tensors, and those of some folders, by the names that come before theirs. See `Checkpoint`.

    Raises CheckpointError for a folder without tensors, having closed the model's.
    """

    def __init__(self, model: Checkpoint, folders: Mapping[str, Path]) -> None:
        self._open = ExitStack()
        self._model = self._open.enter_context(model)
        try:
            self._modules = {name: self._open.enter_context(SafetensorsCheckpoint(folder)) for name, folder in folders.items()}
        except BaseException:
            self._open.close()
            raise
        shapes, dtypes = dict(model.shapes), dict(model.dtypes)
        for folder, stored in self._modules.items():
            shapes |= {f"{folder}/{name}": shape for name, shape in stored.shapes.items()}
            dtypes |= {f"{folder}/{name}": dtype for name, dtype in stored.dtypes.items()}
        self.shapes: Mapping[str, tuple[int, ...]] = shapes
        self.dtypes: Mapping[str, str] = dtypes

    def read(self, name: str, bounds: Bounds) -> Block:
        stored, own = self._place(name)
        return stored.read(own, bounds)

    def reads_rows(self, name: str) -> bool:
        stored, own = self._place(name)
        return stored.reads_rows(own)

    def file_of(self, name: str) -> Path | None:
        stored, own = self._place(name)
        return stored.file_of(own)

    def _place(self, name: str) -> tuple[Checkpoint, str]:
        folder, _, own = name.rpartition("/")
        return (self._modules[folder], own) if folder in self._modules else (self._model, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()
