"""Which experts the tokens of sequences that ended visited, for a trainer that replays them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from jaxserve.config.fields import EngineConfig
from jaxserve.errors import ConfigError
from jaxserve.scheduler.request import Sequence as Running

Routed = npt.NDArray[Any]
"""uint[tokens,layers that have experts,active]: the numbers of the experts of a token in a layer, the best first."""


class RoutedExperts:
    """Reads them when sequences stop, before others get their pages, and keeps them until somebody takes or drops them.

    Args:
        read: starts to read what the tokens in pages visited, behind the steps that were submitted.
        group, groups: of each column of a sequence's pages, which one is read.
    """

    def __init__(self, read: Callable[[Sequence[int]], jax.Array], group: int, groups: int) -> None:
        self._read = read
        self._group, self._groups = group, groups
        self._kept: dict[str, tuple[jax.Array, int]] = {}

    def stopped(self, sequence: Running) -> None:
        """An OnStop. Of its last token nothing is computed; a preempted sequence that goes on stops once more."""
        count = min(len(sequence.tokens) - 1, sequence.num_computed)
        routed = self._read(sequence.pages.pages[self._group :: self._groups])
        routed.copy_to_host_async()
        self._kept[sequence.request.id] = routed, count

    def take(self, name: str, tokens: int) -> Routed | None:
        """Of the first tokens of a sequence; None for one that never ran."""
        kept = self._kept.pop(name, None)
        if kept is None:
            return None
        routed, count = kept
        return np.array(routed[: min(count, tokens)])

    def drop(self) -> None:
        """Forget all."""
        self._kept.clear()


def refuse_routed_experts(config: EngineConfig) -> None:
    """Raise ConfigError where they are asked for: nobody could be told of them."""
    if config.model.enable_return_routed_experts:
        param = "enable_return_routed_experts"
        raise ConfigError(f"{param} is for LLM, in the trainer's program: servers do not return them", param=param)
