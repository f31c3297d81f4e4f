"""Speculation in a simulation: the product's own code decides about drafts, and whether they are right is drawn.

Every token that a simulated model chooses is 0. So a drafter guesses 0 where a draft is to be right, and 1 from the first on that
is not; and the guesses of a draft model, which plans name only, are drawn when they are verified.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from jaxserve.clock import Clock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.speculative import SYNTHETIC, SpeculativeConfig, read_object
from jaxserve.errors import ConfigError
from jaxserve.simulation.costs import CostModel, Counts
from jaxserve.speculation.device import DeviceGuesses
from jaxserve.speculation.drafter import Guess
from jaxserve.speculation.make import make_speculation
from jaxserve.speculation.speculation import Speculation
from jaxserve.step.plan import Ints, Plan

RIGHT, WRONG = 0, 1


@dataclass(frozen=True, slots=True)
class PlayedSpeculation:
    """What a simulation is told of speculation.

    Attributes:
        config: who guesses, and how many tokens at most.
        rates: the chances that the first draft is right, the first two are, and so on.
    """

    config: SpeculativeConfig
    rates: tuple[float, ...]


def parse_speculation(text: str | None) -> PlayedSpeculation | None:
    """From `--speculative-config`, with the acceptance under vLLM's names; None for no speculation. Raises ConfigError."""
    if text is None:
        return None
    given = read_object(text)
    config = SpeculativeConfig.of({name: value for name, value in given.items() if name not in SYNTHETIC})
    if config is None:
        return None
    method = given.get("rejection_sample_method", "synthetic")
    if method != "synthetic":
        raise _wrong("rejection_sample_method", f"must be 'synthetic' in a simulation, got {method!r}")
    rates, length = given.get("synthetic_acceptance_rates"), given.get("synthetic_acceptance_length")
    if (rates is None) == (length is None):
        raise _wrong(
            "synthetic_acceptance_rates",
            "or synthetic_acceptance_length must be given, and not both: a simulation's tokens are pretended",
        )
    most = config.num_speculative_tokens
    return PlayedSpeculation(config, _rates(rates, most) if length is None else _rates_of_length(length, most))


class Synthetic:
    """Draws how many drafts of a row are right, each time anew."""

    def __init__(self, rates: Sequence[float], seed: str) -> None:
        self._rates = tuple(rates)
        self._random = Random(seed)

    def right(self, most: int) -> int:
        """Of `most` drafts, those before the first wrong one."""
        drawn = self._random.random()
        return sum(drawn < rate for rate in self._rates[:most])


class SyntheticDrafter:
    """Makes guesses that are right as often as it is drawn, for any text; it always has one."""

    def __init__(self, synthetic: Synthetic) -> None:
        self._synthetic = synthetic

    def begin(self, tenant: str, num_prompt: int) -> SyntheticDrafter:
        return self

    def propose(self, tokens: Sequence[int], most: int) -> Guess:
        right = self._synthetic.right(most)
        return Guess((RIGHT,) * right + (WRONG,) * (most - right))

    def end(self, tokens: Sequence[int]) -> None:
        """Nothing is learned."""


class PlayedDrafts:
    """What becomes of drafts in the steps of one executor.

    Args:
        costs: of the draft model's steps; None if no model guesses.
        seed: of what is drawn.
    """

    def __init__(self, played: PlayedSpeculation, costs: CostModel | None, seed: str) -> None:
        self._config = played.config
        self._synthetic = Synthetic(played.rates, seed)
        self._costs = costs
        self._refused: dict[int, int] = {}  # of the latest step of each slot

    def speculation(self, scheduler: SchedulerConfig, clock: Clock) -> Speculation | DeviceGuesses | None:
        """The product's own, for the scheduler whose steps are played."""
        return make_speculation(self._config, scheduler, clock, drafter=lambda _: SyntheticDrafter(self._synthetic))

    def lengths(self, plan: Plan) -> Counts:
        """int64[R]: tokens of each row in the cache after the step: behind its plan if the step in flight refused drafts."""
        lengths = plan.kv_length.astype(np.int64)
        on_device = plan.tokens[plan.query_start[:-1]] < 0
        for row in np.flatnonzero(on_device).tolist():
            lengths[row] -= self._refused.get(int(plan.slots[row]), 0)
        return lengths

    def verify(self, plan: Plan) -> Ints:
        """int32[R]: the drafts of each row that were right."""
        right = np.zeros(plan.num_rows, np.int32)
        for row, count in enumerate(plan.num_drafts.tolist()):
            if count:
                end = int(plan.query_start[row + 1])
                drafts = plan.tokens[end - count : end]
                right[row] = self._synthetic.right(count) if drafts[0] < 0 else int(np.cumprod(drafts == RIGHT).sum())
            self._refused[int(plan.slots[row])] = count - int(right[row])
        return right

    def seconds(self, plan: Plan, counts: Counts, lengths: Counts) -> float:
        """Of the draft model behind the step: it computes the step's tokens, and each of its guesses is a step of its own."""
        if self._costs is None or plan.guesses is None:
            return 0.0
        takes = self._costs.cost(counts, lengths, plan.num_drafts.astype(np.int64)).total
        rows = np.ones(plan.num_rows, np.int64)
        return takes + sum(self._costs.cost(rows, lengths + place).total for place in range(1, plan.guesses + 1))


def _rates(given: Any, most: int) -> tuple[float, ...]:
    """Of a list: one for each draft, none larger than the one before."""
    if not isinstance(given, list) or len(given) != most or not all(_is_number(rate) and 0.0 <= rate <= 1.0 for rate in given):
        raise _wrong("synthetic_acceptance_rates", f"must be a list of {most} numbers from 0 to 1, got {given!r}")
    if sorted(given, reverse=True) != given:
        raise _wrong("synthetic_acceptance_rates", f"must not rise: each is for all drafts up to its place, got {given!r}")
    return tuple(map(float, given))


def _rates_of_length(given: Any, most: int) -> tuple[float, ...]:
    """Of a mean number of tokens that a row gets, its own included: of all such rates those that vary least."""
    if not _is_number(given) or not 1.0 <= given <= most + 1:
        raise _wrong("synthetic_acceptance_length", f"must be from 1 to {most + 1}, got {given!r}")
    return tuple(min(max(given - 1.0 - place, 0.0), 1.0) for place in range(most))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _wrong(name: str, what: str) -> ConfigError:
    return ConfigError(f"speculative_config: {name} {what}", param="speculative_config")
