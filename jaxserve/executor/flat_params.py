"""What steps take, flattened once: at every call jax goes through every dictionary of a tree of weights and sorts its keys."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, slots=True)
class _Place:
    """A leaf's place in the tree, which programs name it by."""

    path: str

    def __str__(self) -> str:
        return self.path


@jax.tree_util.register_pytree_with_keys_class
class FlatParams:
    """A tree of weights, or of what stands for them, that is flattened once."""

    def __init__(self, leaves: Iterable[Any], structure: jax.tree_util.PyTreeDef) -> None:
        self._leaves = tuple(leaves)
        self._structure = structure

    @classmethod
    def of(cls, params: dict[Any, Any]) -> FlatParams:
        return cls(*jax.tree.flatten(params))

    def tree(self) -> Any:
        return jax.tree.unflatten(self._structure, self._leaves)

    def tree_flatten(self) -> tuple[tuple[Any, ...], Hashable]:
        return self._leaves, self._structure

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[_Place, Any], ...], Hashable]:
        """The same, each leaf with its place in the tree: a program names its parameters as those of the tree."""
        named, _ = jax.tree_util.tree_flatten_with_path(self.tree())
        return tuple((_Place(jax.tree_util.keystr(path)), leaf) for path, leaf in named), self._structure

    @classmethod
    def tree_unflatten(cls, structure: jax.tree_util.PyTreeDef, leaves: Iterable[Any]) -> FlatParams:
        return cls(leaves, structure)
