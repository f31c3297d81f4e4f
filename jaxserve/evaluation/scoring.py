"""What of a prompt is to be scored, and what its log-probabilities say of a continuation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxserve.outputs import RequestOutput


@dataclass(slots=True)
class ScoredPrompt:
    """A context and its continuation, computed once for all who ask for the same tokens.

    Attributes:
        tokens: both.
        start: where the first continuation of its members starts.
        members: their numbers.
    """

    tokens: tuple[int, ...]
    start: int
    members: list[int] = field(default_factory=list)


def group(wanted: Iterable[tuple[tuple[int, ...], int]]) -> list[ScoredPrompt]:
    """The prompts to score for (context and continuation, where that starts) pairs, which are numbered from 0.

    Those that begin alike are neighbours: what they share is computed once and still in the cache for the next one.
    """
    prompts: dict[tuple[int, ...], ScoredPrompt] = {}
    for number, (tokens, start) in enumerate(wanted):
        prompt = prompts.setdefault(tokens, ScoredPrompt(tokens, start))
        prompt.start = min(prompt.start, start)
        prompt.members.append(number)
    return [prompts[tokens] for tokens in sorted(prompts)]


def parts(prompts: Sequence[ScoredPrompt], size: int) -> Iterator[Sequence[ScoredPrompt]]:
    """The prompts in their order, in runs of about `size` scored tokens: the scores of one are in memory together."""
    begin = scored = 0
    for end, prompt in enumerate(prompts, 1):
        scored += len(prompt.tokens) - prompt.start
        if scored >= size or end == len(prompts):
            yield prompts[begin:end]
            begin, scored = end, 0


def likelihood(output: RequestOutput, length: int) -> tuple[float, bool]:
    """The log-likelihood of a scored prompt's last `length` tokens, natural log, and whether each was the likeliest."""
    assert output.prompt_logprobs is not None, "the prompt was scored"
    start = len(output.prompt_token_ids) - length
    total, greedy = 0.0, True
    for token, scores in zip(output.prompt_token_ids[start:], output.prompt_logprobs[start:], strict=True):
        assert scores is not None, "the continuation was scored"
        total += scores[token].logprob
        greedy &= scores[token].rank == 1
    return total, greedy
