"""What every source of stored tensors offers: names, shapes, dtypes, and any block of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy.typing as npt

Block = npt.NDArray[Any]
Bounds = tuple[tuple[int, int], ...]
"""(start, stop) in every dimension."""
PIECE = 2**22
"""Elements read at a time: memory of a few MiB is used again for the next piece; new memory costs more than reading does."""


class Tensors(Protocol):
    """Tensors that can be read, by name."""

    def read(self, name: str, bounds: Bounds) -> Block:
        """The block of a tensor between (start, stop) in every dimension, in its stored dtype.

        Safe from several threads. The block may be a view of something larger and must not be written to.

        Raises CheckpointError: what is stored cannot be read.
        """
        ...


class Checkpoint(Tensors, Protocol):
    """The tensors of a checkpoint. A context manager: reading needs it to be open.

    Attributes:
        shapes: the shape of every tensor, by name.
        dtypes: the dtype of every tensor, by name, as numpy and ml_dtypes call it: "bfloat16", "float8_e4m3fn".
    """

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]

    def reads_rows(self, name: str) -> bool:
        """Whether a part of a tensor that `piece` gives can be read without reading much more of it."""
        ...

    def file_of(self, name: str) -> Path | None:
        """Where a tensor is, file or folder; None for one that is not there."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def piece(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a part of a tensor that is read at a time: neighbouring elements, at most `PIECE` of them."""
    sizes: list[int] = []
    room = PIECE
    for size in reversed(shape):
        sizes.append(max(1, min(size, room)))
        room //= sizes[-1] if size == sizes[-1] else room  # nothing is left for the dimensions outside one that is divided
    return tuple(reversed(sizes))


def whole(shape: tuple[int, ...]) -> Bounds:
    return tuple((0, size) for size in shape)
