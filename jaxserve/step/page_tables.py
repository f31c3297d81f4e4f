"""Page tables that stay on the device, and what of them a step's plan changes.

A table has an entry for every page of the longest sequence there may be, and a step adds few. So a plan's tables are compared
with what the device has been told, and the difference goes with the batch: what a step sends does not grow with contexts.
Entries are changed, and never cleared: the batch says how many a row has, and nobody reads those before all that it sees.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from jaxserve.step.plan import Ints, Plan

SPARE_CHANGES = 256  # of every step, for prompts that begin with pages of others


def most_changes(tokens: int, rows: int, groups: int, page_size: int) -> int:
    """Changes that come with a batch of so many tokens and rows; a row of q tokens goes on to q/S + 1 pages at most."""
    return groups * (tokens // page_size + rows) + SPARE_CHANGES


class TableChanges(NamedTuple):
    """What the device must know before a step.

    Attributes:
        whole: slots whose tables are put whole, and these, int32[groups,M].
        entries: int32[n,2], in the others, where in int32[groups,slots+1,M] and which page.
        held: int32[R], entries of each row that are its own: behind them are those of sequences that had its slot.
    """

    whole: tuple[tuple[int, Ints], ...]
    entries: Ints
    held: Ints


_NONE = np.zeros((0, 2), np.int32)


class PageTables:
    """The tables of all slots as the device has them.

    Args:
        slots: running sequences at most; one more slot is for padding, whose table stays empty.
        groups: of layers.
        max_pages: M, pages of the longest sequence in each of the groups.
    """

    def __init__(self, slots: int, groups: int, max_pages: int) -> None:
        self._slots, self._groups, self._max_pages = slots, groups, max_pages
        self._known = np.zeros((slots + 1, max_pages * groups), np.int32)  # as plans have them: groups side by side
        self._latest: tuple[Ints, Ints, Ints] | None = None  # of the latest plan, and often the next: slots, pages, how many

    def changes(self, plan: Plan, most: int) -> TableChanges:
        """What a plan changes, which is known from then on: `most` entries, and as many tables put whole as it takes."""
        pages = plan.page_table
        if self._latest is not None and plan.slots is self._latest[0] and pages is self._latest[1]:
            return TableChanges((), _NONE, self._latest[2])
        width, real = pages.shape[1], pages != 0  # the null page
        last = (real * np.arange(1, width + 1, dtype=np.int32)).max(axis=1, initial=0)
        self._latest = plan.slots, pages, -(-last // self._groups)
        rows, places = np.nonzero((pages != self._known[plan.slots, :width]) & real)
        slots = plan.slots[rows]
        self._known[slots, places] = pages[rows, places]
        whole = _fullest(rows, most)
        apart = ~np.isin(rows, whole)
        column, group = np.divmod(places[apart], self._groups)
        where = (group * (self._slots + 1) + slots[apart]) * self._max_pages + column
        entries = np.stack([where, pages[rows[apart], places[apart]]], axis=1).astype(np.int32)
        return TableChanges(tuple((int(slot), self._table(slot)) for slot in plan.slots[whole]), entries, self._latest[2])

    def _table(self, slot: int) -> Ints:
        return np.ascontiguousarray(self._known[slot].reshape(self._max_pages, self._groups).T)


def put_table(tables: jax.Array, slot: jax.Array, table: jax.Array) -> jax.Array:
    """The device's int32[groups,slots+1,M] with one slot's table, int32[groups,M]."""
    return tables.at[:, slot].set(table)


def _fullest(rows: Ints, most: int) -> list[int]:
    """The rows with most of the changes, without which there are `most` of them, given the row of each."""
    if len(rows) <= most:
        return []
    counts = np.bincount(rows)
    order = np.argsort(-counts, kind="stable")
    left = len(rows) - np.cumsum(counts[order])
    enough = int(np.argmax(left <= most)) + 1
    return [int(row) for row in order[:enough]]
