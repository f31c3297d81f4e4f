"""Prompts of given lengths, made of token ids that ordinary text has, so that any tokenizer and server will do."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from jaxserve.workload.requests import WorkloadRequest


class Prompts:
    """The same request gets the same tokens in every run.

    Args:
        vocabulary: token ids to choose from, at least one.
        seed: of the run.
    """

    def __init__(self, vocabulary: Sequence[int], seed: int) -> None:
        self._vocabulary = vocabulary
        self._seed = seed

    def tokens(self, request: WorkloadRequest) -> list[int]:
        """As many ids as the request's prompt has tokens; requests of one prefix begin alike and differ after it."""
        shared: list[int] = []
        if request.prefix is not None:
            shared = self._draw(f"prefix {request.prefix}", request.prefix_tokens)
        return shared + self._draw(f"request {request.number}", request.prompt_tokens - len(shared))

    def _draw(self, what: str, count: int) -> list[int]:
        return Random(f"{self._seed} {what}").choices(self._vocabulary, k=count)
