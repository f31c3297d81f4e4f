"""Checkpoints of a model without its head, as embedding models are saved: their tensors lack the "model." before their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from jaxserve.weights.checkpoint import Block, Bounds, Checkpoint

PREFIX = "model."
_OF_HEADS = "fc.weight"  # draft heads have names without the prefix as well


def lacks_prefix(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is of a model without its head."""
    names = checkpoint.shapes
    layers = any(name.startswith("layers.0.") for name in names)
    return layers and "embed_tokens.weight" in names and _OF_HEADS not in names and not any(n.startswith(PREFIX) for n in names)


class PrefixedTensors:
    """The same tensors under the names that they have beside a head. See `Checkpoint`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.shapes: Mapping[str, tuple[int, ...]] = {PREFIX + name: shape for name, shape in checkpoint.shapes.items()}
        self.dtypes: Mapping[str, str] = {PREFIX + name: dtype for name, dtype in checkpoint.dtypes.items()}

    def read(self, name: str, bounds: Bounds) -> Block:
        return self._checkpoint.read(name.removeprefix(PREFIX), bounds)

    def reads_rows(self, name: str) -> bool:
        return self._checkpoint.reads_rows(name.removeprefix(PREFIX))

    def file_of(self, name: str) -> Path | None:
        return self._checkpoint.file_of(name.removeprefix(PREFIX))

    def __enter__(self) -> Self:
        self._checkpoint.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._checkpoint.__exit__(kind, error, trace)
