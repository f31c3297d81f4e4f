"""Plans by hand, for executors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxserve.scheduler.plan import SUPPRESS_WIDTH, Plan, SamplingRows

Row = tuple[Sequence[int], int, Sequence[int]]


def make_plan(*rows: Row, temperature: float = 0.0, num_logprobs: int = -1, step: int = 0, **more: Any) -> Plan:
    """A plan of rows of (tokens computed, tokens in the cache after the step, pages); each has its own slot and samples."""
    count = len(rows)
    neutral = {"top_p": 1.0, "min_p": 0.0, "presence": 0.0, "frequency": 0.0, "repetition": 1.0, "temperature": temperature}
    table = np.zeros((count, max(len(pages) for _, _, pages in rows)), np.int32)
    for number, (_, _, pages) in enumerate(rows):
        table[number, : len(pages)] = pages
    return Plan(
        step=step,
        ids=tuple(str(number) for number in range(count)),
        slots=np.arange(count, dtype=np.int32),
        tokens=np.concatenate([np.array(tokens, np.int32) for tokens, _, _ in rows]),
        query_start=np.cumsum([0, *(len(tokens) for tokens, _, _ in rows)]).astype(np.int32),
        kv_length=np.array([length for _, length, _ in rows], np.int32),
        page_table=table,
        samples=np.ones(count, np.bool_),
        sampling=SamplingRows(
            top_k=np.zeros(count, np.int32),
            key=np.zeros((count, 2), np.uint32),
            suppress=np.full((count, SUPPRESS_WIDTH), -1, np.int32),
            num_logprobs=np.full(count, num_logprobs, np.int32),
            has_bias=np.zeros(count, np.bool_),
            **{name: np.full(count, value, np.float32) for name, value in neutral.items()},
        ),
        **more,
    )
