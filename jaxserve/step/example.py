"""Plans made by hand: rows of given tokens and pages, without requests and without a scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxserve.sampling.options import STANDARD, RowOption, RowOptions
from jaxserve.step.plan import Plan

Row = tuple[Sequence[int], int, Sequence[int]]
"""Tokens computed, tokens in the cache after the step, pages."""
NO_VALUES: Mapping[RowOption, float] = {}


def example_plan(
    *rows: Row, values: Mapping[RowOption, float] = NO_VALUES, options: RowOptions = STANDARD, step: int = 0, **more: Any
) -> Plan:
    """A plan of these rows: each has its own slot and samples; all have the same `values` of options, the others neutral.

    `more` are fields of the plan.
    """
    count = len(rows)
    table = np.zeros((count, max(len(pages) for _, _, pages in rows)), np.int32)
    for number, (_, _, pages) in enumerate(rows):
        table[number, : len(pages)] = pages
    words = np.tile(options.neutral, (count, 1))
    for option, value in values.items():
        options.column(words, option)[:] = value
    return Plan(
        step=step,
        ids=tuple(map(str, range(count))),
        slots=np.arange(count, dtype=np.int32),
        tokens=np.concatenate([np.array(tokens, np.int32) for tokens, _, _ in rows]),
        query_start=np.cumsum([0, *(len(tokens) for tokens, _, _ in rows)]).astype(np.int32),
        kv_length=np.array([length for _, length, _ in rows], np.int32),
        page_table=table,
        samples=np.ones(count, np.bool_),
        num_drafts=np.zeros(count, np.int32),
        sampling=words,
        **more,
    )
