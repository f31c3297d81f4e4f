"""Scores of a prompt: arrays that read as the positions they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from jaxserve.engine.events import PositionLogprobs, TokenLogprob
from jaxserve.engine.prompt_logprobs import PromptLogprobs
from jaxserve.step.plan import LogprobRows

PROMPT = tuple(range(100, 112))


def rows(first: int, count: int, columns: int = 5) -> LogprobRows:
    numbers = np.arange(first, first + count)
    return LogprobRows(
        chosen=(-numbers).astype(np.float32),
        rank=numbers.astype(np.int32),
        top_ids=(numbers[:, None] + np.arange(columns)).astype(np.int32),
        top=(-numbers[:, None] - np.arange(columns)).astype(np.float32),
    )


def position(rows: LogprobRows, row: int, token: int, count: int) -> PositionLogprobs:
    assert rows.top.shape[1] == count, "no more is kept than was asked for"
    top = tuple(TokenLogprob(int(rows.top_ids[row, i]), float(rows.top[row, i]), i + 1, "", b"") for i in range(count))
    return PositionLogprobs(TokenLogprob(token, float(rows.chosen[row]), int(rows.rank[row]), "", b""), top)


@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.parametrize("count", [0, 2])
def test_reads_as_positions_however_it_came(first: int, count: int) -> None:
    scores = PromptLogprobs(PROMPT, first, count, position)
    assert list(scores) == [None] * first
    for start, end in ((first, first + 3), (first + 3, first + 4), (first + 4, len(PROMPT))):
        scores.add(rows(start, end - start))
        assert len(scores) == end
    positions = list(scores)
    assert positions[:first] == [None] * first
    assert [one.chosen.token_id for one in positions[first:] if one] == list(PROMPT[first:])
    assert [one.chosen.logprob for one in positions[first:] if one] == [-float(place) for place in range(first, len(PROMPT))]
    assert all(one is None or len(one.top) == count for one in positions)
    assert [scores[place] for place in range(len(PROMPT))] == positions
    assert [scores[place - len(PROMPT)] for place in range(len(PROMPT))] == positions
    assert list(scores[2:6]) == positions[2:6]
    assert scores == tuple(positions)
    with pytest.raises(IndexError):
        scores[len(PROMPT)]
