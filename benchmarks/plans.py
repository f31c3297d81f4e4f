"""Plans made by hand: rows of given sizes, without requests and without a scheduler."""

from __future__ import annotations

import numpy as np

from jaxserve.scheduler.plan import SUPPRESS_WIDTH, Plan, SamplingRows

Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""Of a step: tokens and keys of each row."""


def make_plan(shape: Shape, page_size: int, vocabulary: int) -> Plan:
    """A plan of greedy rows with random tokens; rows have pages of their own."""
    counts, lengths = shape
    rows = len(counts)
    table = np.zeros((rows, -(-max(lengths) // page_size)), np.int32)
    following = 1
    for row, length in enumerate(lengths):
        pages = -(-length // page_size)
        table[row, :pages] = np.arange(following, following + pages)
        following += pages
    return Plan(
        step=0,
        ids=tuple(map(str, range(rows))),
        slots=np.arange(rows, dtype=np.int32),
        tokens=np.random.default_rng(0).integers(0, vocabulary, sum(counts)).astype(np.int32),
        query_start=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        kv_length=np.array(lengths, np.int32),
        page_table=table,
        samples=np.ones(rows, np.bool_),
        sampling=SamplingRows(
            temperature=np.zeros(rows, np.float32),
            top_k=np.zeros(rows, np.int32),
            top_p=np.ones(rows, np.float32),
            min_p=np.zeros(rows, np.float32),
            presence=np.zeros(rows, np.float32),
            frequency=np.zeros(rows, np.float32),
            repetition=np.ones(rows, np.float32),
            key=np.zeros((rows, 2), np.uint32),
            suppress=np.full((rows, SUPPRESS_WIDTH), -1, np.int32),
            num_logprobs=np.full(rows, -1, np.int32),
            has_bias=np.zeros(rows, np.bool_),
        ),
    )
