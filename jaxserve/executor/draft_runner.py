"""Runs a draft model behind the target's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxserve.executor.draft_specs import DraftSpecs
from jaxserve.executor.draft_step import DraftState, GuessRows, Handed
from jaxserve.executor.held_weights import HeldWeights
from jaxserve.executor.page_mover import PageMover
from jaxserve.executor.step import ChooseState
from jaxserve.executor.step_programs import DraftPrograms
from jaxserve.executor.zeros import untouched_zeros
from jaxserve.models.binding import Params
from jaxserve.step.plan import MoveKind, PageMove


class DraftWeights(NamedTuple):
    """A draft model's parameters, and int32[tokens of a head] those of the target that it guesses; None for all of them."""

    params: Params
    targets: jax.Array | None = None


class DraftRunner:
    """Owns a draft model's weights, and its keys and values.

    Attributes:
        weights: which may be replaced between two steps.

    Args:
        weights: on the devices.
        moves: programs that move its part of pages.
        swap_slots: pages that the swap space holds.
    """

    def __init__(
        self,
        specs: DraftSpecs,
        weights: DraftWeights,
        moves: Mapping[MoveKind, Any],
        swap_slots: int,
    ) -> None:
        self.guesses = specs.model.guesses
        self.weights = HeldWeights(weights.params)
        self._state: DraftState = jax.tree.map(untouched_zeros, specs.state)
        self._cache = specs.state.cache
        self._targets = weights.targets
        self._mover = PageMover(moves, specs.state.cache, swap_slots)

    def move(self, moves: Sequence[PageMove]) -> None:
        """Its part of the pages that a plan moves."""
        self._state = replace(self._state, cache=self._mover.move(self._state.cache, moves))

    def drop_cache(self) -> None:
        """Free its keys and values; nothing may run before `make_cache`."""
        for array in jax.tree.leaves(self._state.cache):
            array.delete()

    def make_cache(self) -> None:
        """Empty ones in the place of those that were freed."""
        self._state = replace(self._state, cache=jax.tree.map(untouched_zeros, self._cache))

    def collect(self) -> None:
        """As PageMover's."""
        self._mover.collect()

    def run(self, programs: DraftPrograms, state: ChooseState, handed: Handed, guesses: int) -> ChooseState:
        """Compute what the step computed, then guess so many tokens of every row behind the one that it chose."""
        params = self.weights.flat
        self._state = programs.follow(params, self._state, state.latest, handed)
        latest, rows = state.latest, GuessRows.of(handed.batch)
        for place in range(guesses):
            self._state, latest = programs.guess(params, self._state, latest, state.sampler, self._targets, rows, np.int32(place))
        return replace(state, latest=latest)
