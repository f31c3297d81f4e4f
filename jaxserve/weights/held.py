"""What the blocks of one parameter read, so that no byte of a file is read twice for it."""

from __future__ import annotations

from collections.abc import Callable

from jaxserve.weights.checkpoint import Block, Bounds, Checkpoint, whole

Check = Callable[[str, Block], None]
"""Told a tensor's name and all of it; raises what is wrong with it."""


class HeldTensors:
    """Tensors for the blocks of one parameter, used by one thread and then let go. See `Tensors`.

    A block of rows is read from the file alone. A tensor is held whole, from its first read on, where blocks take columns of it
    or the file has no rows (every block would else read nearly all of it), and where it is to be checked.

    Args:
        checkpoint: the files.
        check: called once with every tensor that is read; None for no check.
    """

    def __init__(self, checkpoint: Checkpoint, check: Check | None = None) -> None:
        self._checkpoint = checkpoint
        self._check = check
        self._held: dict[str, Block] = {}

    def read(self, name: str, bounds: Bounds) -> Block:
        everything = whole(self._checkpoint.shapes[name])
        if name not in self._held and self._check is None and self._has_rows(name, bounds, everything):
            return self._checkpoint.read(name, bounds)
        if name not in self._held:
            tensor = self._checkpoint.read(name, everything)
            if self._check is not None:
                self._check(name, tensor)
            if bounds == everything:  # the parameter is one block
                return tensor
            self._held[name] = tensor
        return self._held[name][tuple(slice(*part) for part in bounds)]

    def _has_rows(self, name: str, bounds: Bounds, everything: Bounds) -> bool:
        divided = next((axis for axis, (start, stop) in enumerate(bounds) if stop - start != 1), len(bounds))
        return bounds[divided + 1 :] == everything[divided + 1 :] and self._checkpoint.reads_rows(name)
