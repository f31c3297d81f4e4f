"""Lets whoever updates weights see that an update arrived: checksums of what devices hold, and zeros in their place before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp

from jaxserve.engine.weight_updates import WeightUpdates, WeightVersion
from jaxserve.executor.local import LocalExecutor
from jaxserve.weights.recheck import checksums
from pallas_kernels.matmul import Weight

RESET = "reset"
"""Version of weights that are zeros."""


class WeightChecks:
    """Of one engine; called by the thread that drives it, between two turns.

    Attributes:
        num_devices: that the weights are on.
    """

    def __init__(self, executor: LocalExecutor, updates: WeightUpdates, num_devices: int) -> None:
        self._executor = executor
        self._updates = updates
        self.num_devices = num_devices

    def checksums(self) -> Callable[[], dict[str, str]]:
        """What makes the SHA-256 of each device's part of every parameter, as they are now, in any thread.

        Raises EngineDeadError if they are not there.
        """
        return checksums(self._executor.weights.tree)

    def reset(self) -> Future[WeightVersion]:
        """Put zeros in the place of all weights; what runs ends as aborted. Raises EngineDeadError if they are not there."""
        return self._updates.put(_Zeros(self._executor.weights.tree), RESET, mode="abort")


class _Zeros:
    """See `Incoming`: as many zeros as there are weights, in the same places."""

    fingerprint = "0" * 16

    def __init__(self, params: Any) -> None:
        found = jax.tree.leaves_with_path(params, is_leaf=lambda node: not isinstance(node, dict))
        self._weights = {tuple(key.key for key in keys): weight for keys, weight in found}

    @property
    def sizes(self) -> dict[tuple[str, ...], int]:
        return {path: sum(leaf.nbytes for leaf in jax.tree.leaves(weight)) for path, weight in self._weights.items()}

    def parameters(self) -> Iterator[tuple[tuple[str, ...], Weight]]:
        for path in list(self._weights):
            shapes = self._weights.pop(path)
            yield path, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), shapes)
