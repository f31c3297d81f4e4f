"""The weights that an executor runs with, and how they are replaced: one parameter after another, never both copies of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import jax
import numpy as np

from jaxserve.errors import EngineDeadError
from jaxserve.executor.flat_params import FlatParams
from jaxserve.models.binding import Params
from pallas_kernels.matmul import Weight

Path = tuple[str, ...]
PIECE_BYTES = 256 * 2**20
"""Of new parameters that are made ahead of those that are waited for."""


class HeldWeights:
    """A tree of weights. Everybody else asks for it again at every step, so that what is replaced is freed.

    Attributes:
        missing: why there are no whole weights; None while there are.
    """

    def __init__(self, params: Params) -> None:
        self._params = params
        self._flat: FlatParams | None = FlatParams.of(params)
        self.missing: str | None = None

    @property
    def tree(self) -> Params:
        self._require()
        return self._params

    @property
    def flat(self) -> FlatParams:
        self._require()
        assert self._flat is not None
        return self._flat

    def replace(self, parameters: Iterable[tuple[Path, Weight]], sizes: dict[Path, int], piece_bytes: int = PIECE_BYTES) -> None:
        """Put other arrays in the place of these: each is made before the one it replaces is let go, a piece at a time.

        Raises what making one raises. If it is not the first, these are neither the old weights nor the new ones from then on,
        `missing`, until all of them were replaced.
        """
        flat, self._flat = self._flat, None
        replaced, ahead = 0, 0
        waiting: list[Weight] = []
        try:
            for path, weight in parameters:
                size = sizes[path]
                if waiting and ahead + size > piece_bytes:
                    jax.block_until_ready(waiting)
                    waiting, ahead = [], 0
                flat = None
                self._put(path, weight)
                replaced += 1
                waiting.append(weight)
                ahead += size
            jax.block_until_ready(waiting)
        except BaseException as error:
            if replaced:
                self.missing = f"an update of the weights failed after {replaced} of {len(sizes)} parameters: {error!r}"
            else:
                self._flat = flat
            raise
        self.require_complete(sizes)

    def require_complete(self, sizes: dict[Path, int]) -> None:
        """Whole again, unless only a part was replaced of what was missing."""
        if self.missing is not None and len(sizes) < self._count():
            return
        self.missing = None
        self._flat = FlatParams.of(self._params)

    def covers(self, paths: Iterable[Path]) -> bool:
        """Whether replacing these parameters replaces all."""
        return len(set(paths)) == self._count()

    def to_host(self, watched: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> Params:
        """A copy of all of them in the host's memory; `watched` sees them go by, one after another."""
        leaves, structure = jax.tree.flatten(self.tree)
        copied: Params = jax.tree.unflatten(structure, [np.array(leaf) for leaf in watched(leaves)])
        return copied

    def from_host(self, params: Params) -> None:
        """Put a copy back, in the place of what was dropped."""
        placed = jax.tree.map(lambda leaf, shape: jax.device_put(leaf, shape.sharding), params, self._params)
        self._params, self._flat, self.missing = placed, FlatParams.of(placed), None

    def drop(self, why: str) -> None:
        """Free all of them; `missing` says why until they are replaced."""
        self._flat, self.missing = None, why
        self._params = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), self._params
        )

    def _count(self) -> int:
        return len(jax.tree.leaves(self._params, is_leaf=lambda node: not isinstance(node, dict)))

    def _put(self, path: Path, weight: Weight) -> None:
        *parents, last = path
        node: Any = reduce(lambda tree, key: tree[key], parents, self._params)
        node[last] = weight

    def _require(self) -> None:
        if self.missing is not None:
            raise EngineDeadError(self.missing)
