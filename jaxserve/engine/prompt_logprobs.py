"""Log-probabilities of a prompt as they come from the engine: arrays, of which positions are made where they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np

from jaxserve.engine.events import PositionLogprobs
from jaxserve.step.plan import LogprobRows

Position = PositionLogprobs | None


class PromptLogprobs(Sequence[Position]):
    """One entry a prompt position, None for those that were not scored. As objects they would take thirty times the memory, and
    making thousands of them at once would hold up everybody else.

    Args:
        prompt: token ids.
        first: the first position that is scored.
        count: alternatives a position.
        position: makes one row's position: (rows, row, token, count).
    """

    def __init__(
        self,
        prompt: Sequence[int],
        first: int,
        count: int,
        position: Callable[[LogprobRows, int, int, int], PositionLogprobs],
    ) -> None:
        self._prompt = prompt
        self._first = first
        self._count = count
        self._position = position
        self._parts: list[LogprobRows] = []
        self._ends: list[int] = []  # of the parts, as positions

    def add(self, rows: LogprobRows) -> None:
        top_ids, top = rows.top_ids[:, : self._count].copy(), rows.top[:, : self._count].copy()
        self._parts.append(LogprobRows(chosen=rows.chosen, rank=rows.rank, top_ids=top_ids, top=top))
        self._ends.append(len(self) + len(rows.rank))

    def rows(self) -> LogprobRows:
        """All positions that were scored, as arrays."""
        parts = self._parts
        return LogprobRows(
            chosen=np.concatenate([part.chosen for part in parts]),
            rank=np.concatenate([part.rank for part in parts]),
            top_ids=np.concatenate([part.top_ids for part in parts]),
            top=np.concatenate([part.top for part in parts]),
        )

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else self._first

    def __iter__(self) -> Iterator[Position]:
        yield from [None] * self._first
        token = self._first
        for rows in self._parts:
            for row in range(len(rows.rank)):
                yield self._position(rows, row, self._prompt[token], self._count)
                token += 1

    @overload
    def __getitem__(self, index: int) -> Position: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Position]: ...

    def __getitem__(self, index: int | slice) -> Position | Sequence[Position]:
        if isinstance(index, slice):
            return tuple(self)[index]
        place = range(len(self))[index]
        if place < self._first:
            return None
        part = int(np.searchsorted(self._ends, place, side="right"))
        start = self._ends[part - 1] if part else self._first
        return self._position(self._parts[part], place - start, self._prompt[place], self._count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # it grows
