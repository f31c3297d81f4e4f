"""Plans made by hand: rows of given sizes, without requests and without a scheduler."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxserve.sampling.options import RowOption
from jaxserve.step.example import NO_VALUES, example_plan
from jaxserve.step.plan import Plan

Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""Of a step: tokens and keys of each row."""


def make_plan(shape: Shape, page_size: int, vocabulary: int, values: Mapping[RowOption, float] = NO_VALUES) -> Plan:
    """A plan of rows with random tokens, greedy but for their `values` of options; rows have pages of their own."""
    counts, lengths = shape
    tokens = np.random.default_rng(0).integers(0, vocabulary, sum(counts)).tolist()
    rows, following, token = [], 1, 0
    for count, length in zip(counts, lengths, strict=True):
        pages = -(-length // page_size)
        rows.append((tokens[token : token + count], length, range(following, following + pages)))
        following, token = following + pages, token + count
    return example_plan(*rows, values=values)
