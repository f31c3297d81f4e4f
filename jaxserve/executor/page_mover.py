"""Moves pages of the KV cache: within it, and to slots in host memory and back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from jaxserve.executor.cache_arrays import CacheArrays
from jaxserve.executor.page_moves import MOVE_WIDTH, MoveBatch, move_batches
from jaxserve.step.plan import Ints, MoveKind, PageMove

MAX_PENDING = 4  # calls whose pages are on their way to the host: until then the device holds them besides the cache
_ROUNDS = 3  # there and back, of which the quickest is measured


class PageMover:
    """Submits moves behind the steps before, and ahead of those to come.

    What leaves the cache is gathered on the device and goes to the host while steps run. Only where it is read back, or too much
    is under way, does anybody wait for it.

    Args:
        programs: by the kind of the moves they are for.
        cache: shapes of its arrays, [L,P,...,K,S,...].
        slots: pages that host memory is taken for, once they are used.
    """

    def __init__(self, programs: Mapping[MoveKind, Any], cache: CacheArrays, slots: int) -> None:
        self._num_pages, self._num_slots = cache.stored.shape[1], slots
        self._programs = programs
        self._slots: Any = jax.tree.map(partial(_empty, slots), cache)  # CacheArrays of numpy's arrays
        self._pending: deque[tuple[Ints, Any]] = deque()  # slots, and what goes there; the oldest first

    def move(self, cache: CacheArrays, moves: Sequence[PageMove]) -> CacheArrays:
        """The cache after these moves, of kinds that there are programs for."""
        for batch in move_batches(moves):
            program = self._programs[batch.kind]
            if batch.kind is MoveKind.TO_TIER:
                pages = program(cache, batch.sources)
                for array in jax.tree.leaves(pages):
                    array.copy_to_host_async()
                self._pending.append((batch.destinations[: batch.num_moves], pages))
                self._store(len(self._pending) - MAX_PENDING)
            elif batch.kind is MoveKind.FROM_TIER:
                cache = program(cache, self._read(batch), batch.destinations)
            else:
                cache = program(cache, batch.sources, batch.destinations)
        return cache

    def collect(self) -> None:
        """Store what has come, so that the device need not hold it any longer. Does not wait for anything to be computed."""
        while self._pending and all(array.is_ready() for array in jax.tree.leaves(self._pending[0][1])):
            self._store(1)

    def measure(self, cache: CacheArrays) -> tuple[CacheArrays, float]:
        """Seconds to move a page one way while nothing else runs, and the cache, which holds what it held."""
        count = min(MOVE_WIDTH, self._num_pages - 1, self._num_slots)
        out = [PageMove(MoveKind.TO_TIER, place + 1, place) for place in range(count)]
        back = [PageMove(MoveKind.FROM_TIER, place, place + 1) for place in range(count)]
        times = []
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            cache = jax.block_until_ready(self.move(self.move(cache, out), back))
            times.append(time.perf_counter() - started)
        return cache, min(times) / (2 * count)

    def _read(self, batch: MoveBatch) -> Any:
        """A fresh copy, of arrays [MOVE_WIDTH,L,...,K,S,...], of what is in the batch's slots, once it is there."""
        wanted = batch.sources[: batch.num_moves]
        late = [place for place, (slots, _) in enumerate(self._pending, 1) if not set(slots).isdisjoint(wanted)]
        self._store(late[-1] if late else 0)
        return jax.tree.map(lambda array: array[batch.sources], self._slots)

    def _store(self, count: int) -> None:
        """Wait for the oldest pages on their way, and put them where they go."""
        for _ in range(count):
            slots, pages = self._pending.popleft()
            for array, come in zip(jax.tree.leaves(self._slots), jax.tree.leaves(pages), strict=True):
                array[slots] = np.asarray(come)[: len(slots)]


def _empty(slots: int, array: jax.ShapeDtypeStruct) -> npt.NDArray[Any]:
    """Room for so many pages of an array [L,P,...]: [slots,L,...]."""
    layers, _, *page = array.shape
    return np.zeros((slots, layers, *page), array.dtype)
