"""Plans made by hand: rows of given sizes, without requests and without a scheduler."""

from __future__ import annotations

import numpy as np

from jaxserve.step.example import example_plan
from jaxserve.step.plan import Plan

Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""Of a step: tokens and keys of each row."""


def make_plan(shape: Shape, page_size: int, vocabulary: int) -> Plan:
    """A plan of greedy rows with random tokens; rows have pages of their own."""
    counts, lengths = shape
    tokens = np.random.default_rng(0).integers(0, vocabulary, sum(counts)).tolist()
    rows, following, token = [], 1, 0
    for count, length in zip(counts, lengths, strict=True):
        pages = -(-length // page_size)
        rows.append((tokens[token : token + count], length, range(following, following + pages)))
        following, token = following + pages, token + count
    return example_plan(*rows)
