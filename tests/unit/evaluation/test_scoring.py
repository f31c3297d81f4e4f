"""What is scored for whom, and what scores say."""

from __future__ import annotations

import pytest

from jaxserve.evaluation.scoring import ScoredPrompt, group, likelihood, parts
from jaxserve.outputs import Logprob, RequestOutput


def test_equal_tokens_are_scored_once_from_where_the_first_of_them_starts() -> None:
    wanted = [((1, 2, 3), 2), ((1, 2, 4), 2), ((1, 2, 3), 1), ((1, 2), 1), ((1, 2, 3), 2)]
    assert group(wanted) == [
        ScoredPrompt((1, 2), 1, [3]),
        ScoredPrompt((1, 2, 3), 1, [0, 2, 4]),
        ScoredPrompt((1, 2, 4), 2, [1]),
    ]


def test_prompts_of_one_context_are_neighbours() -> None:
    contexts = {number: tuple(range(number, number + 5)) for number in (3, 1, 2)}
    wanted = [((*contexts[number], token), 5) for token in (9, 8, 7) for number in (3, 1, 2)]
    assert [prompt.tokens[0] for prompt in group(wanted)] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert group([]) == []


def test_parts_have_about_so_many_scored_tokens() -> None:
    prompts = [ScoredPrompt(tuple(range(length)), start) for length, start in ((5, 1), (3, 1), (9, 2), (4, 3), (2, 1))]
    assert list(parts(prompts, 1)) == [[prompt] for prompt in prompts]
    assert list(parts(prompts, 6)) == [prompts[:2], prompts[2:3], prompts[3:]]
    assert list(parts(prompts, 100)) == [prompts]
    assert list(parts([], 6)) == []


def output(*scores: tuple[float, int]) -> RequestOutput:
    """A prompt of tokens 10, 11, ..., of which all but the first are scored; others are likelier where the rank is above 1."""
    tokens = list(range(10, 11 + len(scores)))
    rows: list[dict[int, Logprob] | None] = [None]
    for token, (logprob, rank) in zip(tokens[1:], scores, strict=True):
        rows.append({5: Logprob(-0.5, 1, "likelier"), token: Logprob(logprob, rank, "")})
    return RequestOutput("0", None, tokens, rows, [], 0)


@pytest.mark.parametrize(("length", "wanted"), [(1, (-1.0, True)), (2, (-3.0, False)), (3, (-7.0, False)), (0, (0.0, True))])
def test_likelihood_of_the_last_tokens(length: int, wanted: tuple[float, bool]) -> None:
    assert likelihood(output((-4.0, 1), (-2.0, 2), (-1.0, 1)), length) == wanted
