"""Prompts on an executor with a draft, planned by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from jaxserve.executor.local import LocalExecutor
from jaxserve.step.codes import guessed_token, sampled_token
from tests.support.plans import make_plan

PROMPTS = ([3, 1, 4, 1, 5, 9, 2], [6, 5, 3])


class Session:
    """Two prompts on an executor, in chunks and then a step at a time.

    Args:
        guesses: that a draft makes behind each step; None without one.
        slots: of the executor, whose pages have four tokens.
    """

    def __init__(self, executor: LocalExecutor, guesses: int | None, slots: int) -> None:
        self.executor, self.guesses, self.slots = executor, guesses, slots
        self.tokens: list[list[int]] = [list(prompt) for prompt in PROMPTS]
        self.pages = [list(range(1, 17)), list(range(17, 33))]

    def prefill(self) -> None:
        """The first prompt in two chunks, the second with the latter."""
        first = make_plan((PROMPTS[0][:4], 4, self.pages[0]), guesses=None if self.guesses is None else 0)
        first.samples[:] = False
        self.executor.submit(first).result()
        self.step([PROMPTS[0][4:], PROMPTS[1]], [7, 3], 0)

    def step(self, tokens: Any, lengths: list[int], drafts: int) -> Any:
        rows = zip(tokens, lengths, self.pages, strict=True)
        plan = make_plan(*rows, guesses=self.guesses)
        plan = replace(plan, num_drafts=np.full(2, drafts, np.int32))
        result = self.executor.submit(plan).result()
        for slot in range(2):
            self.tokens[slot] += result.tokens[slot, : result.num_tokens[slot]].tolist()
        return result

    def decode(self) -> Any:
        drafts = self.guesses or 0
        codes = [[sampled_token(slot), *(guessed_token(slot, place, self.slots) for place in range(drafts))] for slot in range(2)]
        return self.step(codes, [len(tokens) + drafts for tokens in self.tokens], drafts)

    def guessed(self) -> list[list[int]]:
        latest = np.asarray(self.executor._choose.latest)
        return [latest[slot, 2:].tolist() for slot in range(2)]
