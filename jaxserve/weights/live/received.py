"""Arrays that another process sends, in the host's memory until all of them are there."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from math import prod

import numpy as np

from jaxserve.errors import ConflictError, InvalidRequestError
from jaxserve.weights.checkpoint import Block
from jaxserve.weights.live.pieces import Part, read_piece

_LISTED = 3


class Received:
    """What has come of the arrays that were announced. Threads may put pieces at the same time.

    Args:
        announced: shape and dtype of every array, by name; they were checked.
        wanted: those of them that are kept.
    """

    def __init__(self, announced: Mapping[str, tuple[tuple[int, ...], np.dtype]], wanted: Collection[str]) -> None:
        self._announced = announced
        self._wanted = {name for name in announced if name in wanted}
        self._arrays: dict[str, Block] = {}
        self._came: dict[str, dict[int, int]] = {name: {} for name in self._wanted}
        self._lock = threading.Lock()
        self._sealed = False
        self.bytes = 0

    @property
    def wanted_bytes(self) -> int:
        return sum(prod(shape) * dtype.itemsize for shape, dtype in (self._announced[name] for name in self._wanted))

    def put(self, content: bytes) -> None:
        """Keep the parts of a piece. The same part may come again, and replaces what came before.

        Raises InvalidRequestError for a part that was not announced so, ConflictError once all are taken.
        """
        parts = read_piece(content)
        for part in parts:
            self._check(part)
        with self._lock:
            if self._sealed:
                raise ConflictError("the update is being finished: nothing more is taken")
            for part in parts:
                if part.name in self._wanted:
                    self._keep(part)

    def take(self) -> dict[str, Block]:
        """All arrays; nothing more is put. Raises ConflictError if some are not whole."""
        with self._lock:
            missing = [name for name in sorted(self._wanted) if not self._is_whole(name)]
            if missing:
                more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
                raise ConflictError(
                    f"the update cannot be finished: {', '.join(missing[:_LISTED])}{more} did not come, or not all of it"
                )
            if self._sealed:
                raise ConflictError("the update is being finished already")
            self._sealed = True
            return self._arrays

    def give_back(self) -> None:
        """What was taken is not used: pieces may come again."""
        self._sealed = False

    def _check(self, part: Part) -> None:
        announced = self._announced.get(part.name)
        if announced is None:
            raise InvalidRequestError(f"{part.name} was not announced when the update was started")
        shape, dtype = announced
        elements = part.elements
        if elements.dtype != dtype:
            raise InvalidRequestError(f"{part.name} is {elements.dtype}, and was announced as {dtype}")
        if part.whole and elements.shape != shape:
            raise InvalidRequestError(f"{part.name} is {list(elements.shape)}, and was announced as {list(shape)}")
        if part.start + elements.size > prod(shape):
            raise InvalidRequestError(
                f"{part.name} has {prod(shape)} elements: none are at {part.start} to {part.start + elements.size}"
            )

    def _keep(self, part: Part) -> None:
        shape, dtype = self._announced[part.name]
        came, start, stop = self._came[part.name], part.start, part.start + part.elements.size
        if came.get(start) != stop:
            if any(start < end and begin < stop for begin, end in came.items()):
                raise InvalidRequestError(f"elements {start} to {stop} of {part.name} came already, in another part")
            came[start] = stop
            self.bytes += part.elements.nbytes
        array = self._arrays.get(part.name)
        if array is None:
            array = self._arrays[part.name] = np.empty(shape, dtype)
        array.reshape(-1)[start:stop] = part.elements.reshape(-1)

    def _is_whole(self, name: str) -> bool:
        came = self._came[name]
        return name in self._arrays and sum(stop - start for start, stop in came.items()) == prod(self._announced[name][0])
