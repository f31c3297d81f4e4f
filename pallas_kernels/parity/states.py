"""Steps over tables of recurrent states: what the operations that have some share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pallas_kernels.state_rows import StateRows

PLACES = 12
TINY_TOKENS = 12  # of a step that an interpreted kernel runs


class Step(NamedTuple):
    """Rows of a step.

    Attributes:
        name: of the step.
        lengths: tokens of each row.
        padding: tokens of no row, behind them.
        new: rows that begin.
        snapshots: after how many tokens a row has one, by its number.
        shared: rows that go on from one snapshot.
        drafts: how many states are wanted behind the last but so many tokens, by the row's number; W is 3.
    """

    name: str
    lengths: tuple[int, ...]
    padding: int = 0
    new: tuple[int, ...] = ()
    snapshots: dict[int, int] = {}  # noqa: RUF012 - of a tuple, never written
    shared: tuple[int, ...] = ()
    drafts: dict[int, int] | None = None

    def tiny(self, most: int | None = None) -> bool:
        """Whether it is small enough for an interpreted kernel, which leaves rows of more tokens than `most` to others."""
        return sum(length for length in self.lengths if most is None or length <= most) <= TINY_TOKENS

    def rows(self) -> StateRows:
        """Row r's own place is r + 1, its snapshot's the r-th from the end; with drafts there are three of its own."""
        count, total = len(self.lengths), sum(self.lengths) + self.padding
        starts = np.cumsum([0, *self.lengths])
        of_token = np.zeros(total, np.int32)
        of_token[: starts[-1]] = np.repeat(np.arange(count), self.lengths)
        width = 1 if self.drafts is None else 3
        own = 1 + np.arange(count * width).reshape(count, width)
        source = own[:, -1].copy()
        source[list(self.shared)] = own.max() + 1
        source[list(self.new)] = 0
        at = np.array([self.snapshots.get(row, 0) for row in range(count)])
        for row, length in enumerate(self.lengths):
            wanted = min(length, 1 + (self.drafts or {}).get(row, 0))
            own[row, : width - wanted] = PLACES
        arrays: tuple[Any, ...] = (starts, of_token, source, own, PLACES - 1 - np.arange(count), at)
        return StateRows(*(array.astype(np.int32) for array in arrays))


STEPS = (
    Step("one new token", (1,), new=(0,)),
    Step("decodes", (1, 1, 1, 1), snapshots={1: 1, 3: 1}),
    Step("decodes and padding", (1, 0, 1, 0), padding=3, new=(2,)),
    Step("few tokens a row", (3, 2, 4, 1, 1), snapshots={0: 2, 2: 4}),
    Step("padding rows behind", (2, 1, 0, 0, 0, 0), padding=1),
    Step("a new prompt", (70,), new=(0,), snapshots={0: 64}, padding=2),
    Step("a chunk exactly", (64, 1), snapshots={0: 64}),
    Step("mixed", (1, 130, 1, 7), new=(3,), snapshots={1: 112, 2: 1, 3: 3}, padding=5),
    Step("rows of one snapshot", (5, 20, 1), shared=(0, 2), snapshots={1: 1}),
    Step("no row", (0, 0), padding=4),
    Step("drafts", (3, 1, 3), drafts={0: 2, 2: 1}),
    Step("drafts beside a prompt", (3, 80), drafts={0: 1}, snapshots={1: 64}, padding=1),
)


def table(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, rows: StateRows) -> np.ndarray:
    """A table [L, N, ...] of random states, NaN where no row reads, zeros at place 0."""
    states = rng.standard_normal(shape).astype(dtype)
    unread = [place for place in range(shape[1]) if place not in rows.source]
    states[:, unread] = np.nan
    states[:, 0] = 0
    return states
