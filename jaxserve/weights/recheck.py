"""Reads weights back from device memory, a few at a time, and compares them with what was loaded: memory may lose bits.

Every device's block of every parameter has a checksum from when it was loaded. A thread goes through the blocks in random order,
each as often as the others, with pauses that spread a round over the given time. Weights are never written to, so reading them
needs no place between steps.
"""

from __future__ import annotations

import logging
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import numpy as np

from jaxserve.errors import EngineDeadError
from jaxserve.jax_settings import engine_settings
from jaxserve.models.binding import Params
from jaxserve.weights.checkpoint import Block, Bounds
from jaxserve.weights.manifest import checksum

logger = logging.getLogger(__name__)

Place = tuple[str, Bounds]
"""Of a block: the parameter's path, joined with dots, and where in the parameter it is."""


class BlockSums:
    """Checksums of the blocks that were loaded, by place. Threads may add to it."""

    def __init__(self) -> None:
        self._sums: dict[Place, str] = {}

    def add(self, path: tuple[str, ...], bounds: Bounds, block: Block) -> None:
        self._sums[".".join(path), bounds] = checksum(block)

    def add_held(self, path: tuple[str, ...], parameter: Any) -> None:
        """The blocks of a parameter, or of its parts, that devices hold already."""
        for held in _blocks(reduce(lambda tree, key: {key: tree}, reversed(path), parameter)):
            self._sums[held.place] = checksum(np.asarray(held.data))

    def __getitem__(self, place: Place) -> str:
        return self._sums[place]


@dataclass(frozen=True, slots=True)
class _Held:
    place: Place
    device: str
    data: jax.Array


class WeightGuard:
    """Compares weights on devices with their checksums, in a thread of its own that ends with the guard.

    Attributes:
        checked: blocks that were read back and found as they were loaded.
        error: says which block was not; None until then. The thread ends there: the weights must be loaded again.
        minutes: as given.

    Args:
        minutes: that a round over all blocks takes, at least.
    """

    def __init__(self, params: Params, sums: BlockSums, minutes: float) -> None:
        self._sums = sums
        self._blocks = list(_blocks(params))
        self._round: list[_Held] = []
        self.minutes = minutes
        self._pause = minutes * 60 / len(self._blocks)
        self.checked = 0
        self.error: EngineDeadError | None = None

    def start(self) -> None:
        stop = threading.Event()
        weakref.finalize(self, stop.set)
        guard = weakref.ref(self)  # the thread alone must not keep the weights in memory
        threading.Thread(target=_run, args=(guard, stop, self._pause), name="jaxserve-weights", daemon=True).start()

    def check_next(self) -> None:
        """Read the next block back; `error` says it if it is not what was loaded."""
        if not self._round:
            self._round = random.sample(self._blocks, len(self._blocks))
        block = self._round.pop()
        found, expected = checksum(_read_back(block.data)), self._sums[block.place]
        if found == expected:
            self.checked += 1
            return
        name, bounds = block.place
        where = ", ".join(f"{start}:{stop}" for start, stop in bounds)
        self.error = EngineDeadError(
            f"the weights {name}[{where}] on {block.device} are not what was loaded: its memory may be faulty"
        )
        logger.critical("%s (checksum %s, was %s)", self.error.message, found[:12], expected[:12])

    def require_intact(self) -> None:
        """Raise EngineDeadError if a block was not what was loaded."""
        if self.error is not None:
            raise self.error


def checksums(params: Params) -> Callable[[], dict[str, str]]:
    """What makes checksums of weights as they are now, in any thread: of each device's part, by "tp", its number and the name."""
    leaves = jax.tree.leaves_with_path(params)

    def make() -> dict[str, str]:
        return {
            f"tp{number}:{_name(keys)}": checksum(_read_back(shard.data))
            for keys, leaf in leaves
            for number, shard in enumerate(leaf.addressable_shards)
        }

    return make


def _read_back(data: jax.Array) -> Block:
    # An array keeps the copy that numpy once saw of it, which would fill the host's memory: so of another array of the same
    # buffer, which goes.
    return np.asarray(jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data]))


def guard_of(params: Params, minutes: float) -> WeightGuard:
    """A guard of weights as devices hold them now."""
    sums = BlockSums()
    sums.add_held((), params)
    return WeightGuard(params, sums, minutes)


def bounds_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
    """Where in a parameter a block is, from the slices that jax has for it."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _blocks(params: Any) -> Iterator[_Held]:
    for keys, leaf in jax.tree.leaves_with_path(params):
        path = _name(keys)
        for shard in leaf.addressable_shards:
            yield _Held((path, bounds_of(shard.index, leaf.shape)), str(shard.device), shard.data)


def _name(keys: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator=".")


@engine_settings()
def _run(guard: weakref.ref[WeightGuard], stop: threading.Event, pause: float) -> None:
    while not stop.wait(pause):
        here = guard()
        if here is None:
            return
        here.check_next()
        if here.error is not None:
            return
        del here  # or the guard would live through the pause
