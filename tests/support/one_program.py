"""Functions of arrays as one program: jax compiles each operation of others by itself, for every shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np

_ARRAY = object()


def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function that needs nothing but its arguments makes of them; those that are no arrays must be hashable."""
    leaves, tree = jax.tree.flatten(arguments)
    others = tuple(_ARRAY if isinstance(leaf, np.ndarray | jax.Array) else leaf for leaf in leaves)
    arrays = [leaf for leaf, other in zip(leaves, others, strict=True) if other is _ARRAY]
    return jax.tree.map(np.asarray, _program(function, tree, others)(arrays))


@cache
def _program(function: Callable[..., Any], tree: Any, others: Sequence[Any]) -> Callable[[list[Any]], Any]:
    def run(arrays: list[Any]) -> Any:
        given = iter(arrays)
        return function(*jax.tree.unflatten(tree, [next(given) if other is _ARRAY else other for other in others]))

    return jax.jit(run)
