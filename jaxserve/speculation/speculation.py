"""Drafts for the rows of an engine's steps: who has any, and how many are worth their cost.

Drafts follow known tokens, and the last one of a row is not known while its step is in flight. So a step that is to have drafts
is planned when the one before it is over: the device waits for the host that long. `pays` says whether that is worth it, before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxserve.clock import Clock
from jaxserve.speculation.acceptance import Follower
from jaxserve.speculation.allocation import counted, fastest, likeliest
from jaxserve.speculation.costs import DraftCosts
from jaxserve.speculation.drafter import Drafter, Form

RATE = 0.1  # weight of the newest turn in what the host takes
PROMPT_SHARE = 4  # one token in so many of a step with prompts may be a draft


class Row(NamedTuple):
    """A row that may have drafts.

    Attributes:
        id, num_prompt: of its sequence.
        tenant: whose texts it may learn from.
        tokens: all that are known.
        most: drafts that it may have.
        form: of the text, all tokens of which it knows where drafts are asked for; None if there is none.
        sure: tokens that must come next by it.
    """

    id: str
    tenant: str
    num_prompt: int
    tokens: Sequence[int]
    most: int
    form: Form | None = None
    sure: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeculationCounts:
    """What was counted since the start.

    Attributes:
        drafts: rows that verified any.
        draft_tokens, accepted_tokens: guesses that were verified, and that were right.
        accepted_at: of each position, how many were right.
        seconds: that making them took.
        method: who guesses, by the name that configurations have for it.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: tuple[int, ...] = ()
    seconds: float = 0.0
    method: str = ""


class Speculation:
    """Followers of sequences, and what steps cost.

    Attributes:
        max_drafts: that a row has at most.
        counts: so far.

    Args:
        clock: tells how long guessing takes.
        max_rows, max_tokens: of a step.
        least_chance: of being right, below which a draft is not worth the prompt token whose place it takes.
    """

    def __init__(
        self, drafter: Drafter, max_drafts: int, clock: Clock, *, max_rows: int, max_tokens: int, least_chance: float = 0.5
    ) -> None:
        self.max_drafts = max_drafts
        self._drafter = drafter
        self._clock = clock
        self._max_tokens = max_tokens
        self._least_chance = least_chance
        self._costs = DraftCosts(min(max_rows * (1 + max_drafts), max_tokens))
        self._followers: dict[str, Follower] = {}
        self._host_seconds = 0.0
        self._accepted_at = [0] * max_drafts
        self.counts = SpeculationCounts()

    def pays(self, rows: Sequence[Row], num_rows: int) -> bool:
        """Whether to plan the next step of `num_rows` decodes only when the one in flight is over, for these to have drafts."""
        began = self._clock.now()
        chances = []
        for row in rows:
            follower = self._follower(row)
            guess = follower.watch(row.tokens, row.most).tokens
            if row.sure:
                chances.append([1.0] * min(len(row.sure), row.most))
            elif guess:
                chances.append(follower.chances(row.most))
        room = self._max_tokens - num_rows
        counts = fastest(chances, num_rows, self._seconds(num_rows), room=room, gap=self._host_seconds) if chances else []
        self._took(began)
        return any(counts)

    def drafts(
        self, rows: Sequence[Row], num_rows: int, *, room: int, prompts: bool, limit: float = 0.0
    ) -> dict[str, tuple[int, ...]]:
        """The drafts of those rows that get any.

        Args:
            rows: those that may have some.
            num_rows: decodes of the step.
            room: tokens that the step has left.
            prompts: whether they take the place of prompts' tokens.
            limit: seconds that a step of decodes may take; 0 for any.
        """
        began = self._clock.now()
        found = []
        for row in rows:
            follower = self._follower(row)
            guess = follower.look(row.tokens, row.most).tokens
            tokens, chances = bounded(row, guess, follower.chances(row.most))
            if tokens:
                found.append((row.id, tokens, chances))
        every = [chances for _, _, chances in found]
        if not found:
            counts: list[int] = []
        elif prompts:
            worth = [head for head in likeliest(every, room // PROMPT_SHARE) if head[0] >= self._least_chance]
            counts = counted(worth, len(every))
        else:
            counts = fastest(every, num_rows, self._seconds(num_rows), room=room, limit=limit)
        self._took(began)
        return {name: tokens[:count] for (name, tokens, _), count in zip(found, counts, strict=True) if count}

    def verified(self, num_drafts: int, num_right: int) -> None:
        """A row verified drafts."""
        counts = self.counts
        for position in range(num_right):
            self._accepted_at[position] += 1
        self.counts = replace(
            counts,
            drafts=counts.drafts + 1,
            draft_tokens=counts.draft_tokens + num_drafts,
            accepted_tokens=counts.accepted_tokens + num_right,
            accepted_at=tuple(self._accepted_at),
        )

    def ended(self, name: str, tokens: Sequence[int]) -> None:
        """A sequence is over."""
        follower = self._followers.pop(name, None)
        if follower is not None:
            follower.end(tokens)

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """A step of decodes alone took so long."""
        self._costs.observe(rows, tokens, seconds)

    def observe_host(self, seconds: float) -> None:
        """Taking in a step and launching the next one took so long, which a device waits for if they do not overlap."""
        if math.isfinite(seconds) and seconds >= 0.0:
            self._host_seconds += RATE * (seconds - self._host_seconds)

    def _seconds(self, rows: int) -> _StepSeconds:
        return _StepSeconds(self._costs, rows)

    def _follower(self, row: Row) -> Follower:
        follower = self._followers.get(row.id)
        if follower is None:
            follower = self._followers[row.id] = Follower(self._drafter.begin(row.tenant, row.num_prompt))
        return follower

    def _took(self, began: float) -> None:
        self.counts = replace(self.counts, seconds=self.counts.seconds + self._clock.now() - began)


def bounded(row: Row, guess: tuple[int, ...], chances: Sequence[float]) -> tuple[tuple[int, ...], list[float]]:
    """A guess at what follows a row, and its chances, by its form: what must come is sure, and what may not is cut off."""
    sure = row.sure[: row.most]
    if len(guess) < len(sure) or guess[: len(sure)] != sure:
        return sure, [1.0] * len(sure)
    if row.form is not None and len(guess) > len(sure):
        guess = guess[: row.form.allows(guess)]
    first = chances[len(sure) - 1] if sure else 1.0
    behind = [chance / first if first else 0.0 for chance in chances[len(sure) : len(guess)]]
    return guess, [1.0] * len(sure) + behind


class _StepSeconds:
    """Seconds of a step of so many rows by its number of drafts, each size looked up once."""

    def __init__(self, costs: DraftCosts, rows: int) -> None:
        self._costs = costs
        self._rows = rows
        self._known: dict[int, float] = {}

    def __call__(self, drafts: int) -> float:
        tokens = self._rows + drafts
        size = self._costs.padded(tokens)
        seconds = self._known.get(size)
        if seconds is None:
            seconds = self._known[size] = self._costs.seconds(self._rows, tokens)
        return seconds
