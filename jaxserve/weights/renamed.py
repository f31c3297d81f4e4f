"""Tensors of a checkpoint under other names than they are stored by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from jaxserve.models.text_part import text_names
from jaxserve.weights.checkpoint import Block, Bounds, Checkpoint

PREFIX = "model."
_OF_HEADS = "fc.weight"  # draft heads have names without the prefix as well


def named_as_decoder(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint under the names of a decoder with its head, which it may have.

    One without its head, as embedding models are saved, lacks the "model." before its names; of a model for images and sound the
    decoder's names have more before them, and others are passed over.
    """
    names = checkpoint.shapes
    layers = any(name.startswith("layers.0.") for name in names)
    if layers and "embed_tokens.weight" in names and _OF_HEADS not in names and not any(n.startswith(PREFIX) for n in names):
        return RenamedTensors(checkpoint, {PREFIX + name: name for name in names})
    inner = text_names(names)
    return checkpoint if inner is None else RenamedTensors(checkpoint, inner)


class RenamedTensors:
    """Some tensors of a checkpoint, by other names; see `Checkpoint`.

    Args:
        stored: the name that each is stored by.
    """

    def __init__(self, checkpoint: Checkpoint, stored: Mapping[str, str]) -> None:
        self._checkpoint, self._stored = checkpoint, stored
        self.shapes: Mapping[str, tuple[int, ...]] = {name: checkpoint.shapes[there] for name, there in stored.items()}
        self.dtypes: Mapping[str, str] = {name: checkpoint.dtypes[there] for name, there in stored.items()}

    def read(self, name: str, bounds: Bounds) -> Block:
        return self._checkpoint.read(self._stored[name], bounds)

    def reads_rows(self, name: str) -> bool:
        return self._checkpoint.reads_rows(self._stored[name])

    def file_of(self, name: str) -> Path | None:
        return self._checkpoint.file_of(self._stored.get(name, name))

    def __enter__(self) -> Self:
        self._checkpoint.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._checkpoint.__exit__(kind, error, trace)
